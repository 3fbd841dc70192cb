/* See cpu_pool.h. */
#define _GNU_SOURCE /* for the affinity of threads */
#include "cpu_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS_IN_JOB = 5000, SPINS_BETWEEN_JOBS = 2000 };

/* Both count items in their lower half and carry the job's number in the upper. */
struct phase {
    _Alignas(64) _Atomic uint64_t next; /* the first item that nobody has taken */
    _Atomic uint64_t done;
};

struct pool {
    int32_t num_threads, num_phases;
    pthread_t *threads;
    struct phase *phases;
    _Atomic job_function job;
    void *_Atomic context;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    atomic_int sleeping;
    atomic_bool stopping;
    _Alignas(64) atomic_uint jobs; /* how many jobs were started: the number of the last */
};

struct start {
    struct pool *pool;
    int32_t thread;
};

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait a little where we are, then let others have the core. */
static inline void wait_turn(int *spins) {
    if (++*spins < SPINS_IN_JOB) pause_briefly();
    else sched_yield();
}

int32_t pool_take(struct pool *pool, uint32_t number, int32_t phase, int32_t step) {
    _Atomic uint64_t *next = &pool->phases[phase].next;
    uint64_t seen = atomic_load_explicit(next, memory_order_acquire);
    do {
        if (seen >> 32 != number) return -1;
    } while (!atomic_compare_exchange_weak(next, &seen, seen + step));
    return (int32_t)(uint32_t)seen;
}

void pool_complete(struct pool *pool, int32_t phase, int32_t count) {
    atomic_fetch_add_explicit(&pool->phases[phase].done, count, memory_order_acq_rel);
}

void pool_wait(struct pool *pool, uint32_t number, int32_t phase, int32_t count) {
    for (int spins = 0;;) {
        const uint64_t done = atomic_load_explicit(&pool->phases[phase].done, memory_order_acquire);
        if (done >> 32 != number || (uint32_t)done >= (uint32_t)count) return;
        wait_turn(&spins);
    }
}

static void wait_for_job(struct pool *pool, unsigned seen) {
    for (int spins = 0; spins < SPINS_BETWEEN_JOBS; spins++) {
        if (atomic_load_explicit(&pool->jobs, memory_order_acquire) != seen) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleeping, 1);
    while (atomic_load(&pool->jobs) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void announce_job(struct pool *pool) {
    atomic_fetch_add(&pool->jobs, 1);
    if (!atomic_load(&pool->sleeping)) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void *work(void *argument) {
    struct start start = *(struct start *)argument;
    struct pool *pool = start.pool;
    free(argument);
    for (unsigned seen = 0;;) {
        wait_for_job(pool, seen);
        seen = atomic_load(&pool->jobs);
        if (atomic_load(&pool->stopping)) return NULL;
        atomic_load(&pool->job)(atomic_load(&pool->context), start.thread, seen);
    }
}

/* Number the phases for the next job: who is still in the last one finds it over before anything it reads changes. */
static void renumber_phases(struct pool *pool) {
    const uint64_t start = (uint64_t)(atomic_load(&pool->jobs) + 1) << 32;
    for (int32_t i = 0; i < pool->num_phases; i++) {
        atomic_store_explicit(&pool->phases[i].next, start, memory_order_release);
        atomic_store_explicit(&pool->phases[i].done, start, memory_order_release);
    }
}

void pool_run(struct pool *pool, job_function job, void *context) {
    const uint32_t number = atomic_load(&pool->jobs) + 1;
    atomic_store(&pool->job, job);
    atomic_store(&pool->context, context);
    announce_job(pool);
    job(context, 0, number);
    renumber_phases(pool);
}

int32_t pool_size(const struct pool *pool) { return pool->num_threads; }

/* Whether `thread` now runs on `cpu` alone. */
static int pin_thread(pthread_t thread, int32_t cpu) {
#if defined(__linux__)
    cpu_set_t *set = CPU_ALLOC(cpu + 1);
    if (!set) return 0;
    const size_t size = CPU_ALLOC_SIZE(cpu + 1);
    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    const int pinned = !pthread_setaffinity_np(thread, size, set);
    CPU_FREE(set);
    return pinned;
#else
    (void)thread, (void)cpu;
    return 0;
#endif
}

static int start_thread(struct pool *pool, int32_t thread) {
    struct start *start = malloc(sizeof *start);
    if (!start) return 0;
    *start = (struct start){pool, thread};
    if (!pthread_create(&pool->threads[thread], NULL, work, start)) return 1;
    free(start);
    return 0;
}

/* Start the workers, and pin them; when that fails, those that were started stay to be joined. */
static int start_threads(struct pool *pool, const int32_t *cpus) {
    const int32_t wanted = pool->num_threads;
    for (pool->num_threads = 1; pool->num_threads < wanted;) {
        const int32_t thread = pool->num_threads;
        if (!start_thread(pool, thread)) return 0;
        pool->num_threads++;
        if (cpus && !pin_thread(pool->threads[thread], cpus[thread])) return 0;
    }
    return 1;
}

struct pool *pool_create(int32_t num_threads, int32_t num_phases, const int32_t *cpus) {
    struct pool *pool = aligned_alloc(64, sizeof *pool);
    if (!pool) return NULL;
    *pool = (struct pool){
        .num_threads = num_threads,
        .num_phases = num_phases,
        .threads = calloc(num_threads, sizeof(pthread_t)),
        .phases = aligned_alloc(64, num_phases * sizeof(struct phase)),
    };
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    if (pool->threads && pool->phases) {
        renumber_phases(pool);
        if (start_threads(pool, cpus)) return pool;
    } else pool->num_threads = 1; /* there is nobody to join */
    pool_destroy(pool);
    return NULL;
}

void pool_destroy(struct pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stopping, 1);
    announce_job(pool);
    for (int32_t thread = 1; thread < pool->num_threads; thread++) pthread_join(pool->threads[thread], NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    free(pool->threads);
    free(pool->phases);
    free(pool);
}
