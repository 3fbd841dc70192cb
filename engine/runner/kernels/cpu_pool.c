/* See cpu_pool.h. */
#include "cpu_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS_IN_JOB = 2000, SPINS_BETWEEN_JOBS = 2000 };

struct pool {
    int32_t num_threads;
    pthread_t *threads;
    job_function job;
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    atomic_int sleeping;
    atomic_bool stopping;
    _Alignas(64) atomic_uint jobs; /* how many jobs were started */
    _Alignas(64) atomic_uint phase;
    atomic_int arrived;
    _Alignas(64) atomic_int next;
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

void pool_barrier(struct pool *pool) {
    const unsigned phase = atomic_load_explicit(&pool->phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) + 1 == pool->num_threads) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->phase, phase + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&pool->phase, memory_order_acquire) == phase; spins++) {
        if (spins < SPINS_IN_JOB) pause_briefly();
        else sched_yield();
    }
}

int32_t pool_take(struct pool *pool, int32_t step) {
    return atomic_fetch_add_explicit(&pool->next, step, memory_order_relaxed);
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
    for (unsigned seen = 0;; seen++) {
        wait_for_job(pool, seen);
        if (atomic_load(&pool->stopping)) return NULL;
        pool->job(pool->context, start.thread);
        pool_barrier(pool);
    }
}

void pool_run(struct pool *pool, job_function job, void *context) {
    pool->job = job;
    pool->context = context;
    announce_job(pool);
    job(context, 0);
    pool_barrier(pool);
}

int32_t pool_size(const struct pool *pool) { return pool->num_threads; }

static int start_thread(struct pool *pool, int32_t thread) {
    struct start *start = malloc(sizeof *start);
    if (!start) return 1;
    *start = (struct start){pool, thread};
    if (!pthread_create(&pool->threads[thread], NULL, work, start)) return 0;
    free(start);
    return 1;
}

struct pool *pool_create(int32_t num_threads) {
    struct pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (!pool) return NULL;
    *pool = (struct pool){.num_threads = num_threads, .threads = calloc(num_threads, sizeof(pthread_t))};
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (int32_t thread = 1; thread < num_threads; thread++) {
        if (!pool->threads || start_thread(pool, thread)) {
            pool->num_threads = thread;
            pool_destroy(pool);
            return NULL;
        }
    }
    return pool;
}

void pool_destroy(struct pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stopping, 1);
    announce_job(pool);
    for (int32_t thread = 1; thread < pool->num_threads; thread++) pthread_join(pool->threads[thread], NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    free(pool->threads);
    free(pool);
}
