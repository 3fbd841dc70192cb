/* Runs CUDA kernels on the CPU: blocks one after the other, the threads of a block as fibers of one thread.

   A fiber runs until it waits for its warp or its block. When all that are left of a warp or block wait for it, they go
   on; when nobody can, threads have parted ways at a barrier, and the run stops with a message. Shared memory is filled
   with rubbish before each block, and fibers run forwards or backwards, so that code that forgets a barrier is found. */
#pragma once
#include <csetjmp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __align__(bytes) alignas(bytes)
#define __shared__ static __attribute__((section("shared_memory")))

struct Dim3 {
    unsigned int x, y, z;
};

static Dim3 threadIdx, blockIdx, blockDim, gridDim;

enum Waiting { NOTHING, WARP_BARRIER, BLOCK_BARRIER, DONE };

struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool started;
    Waiting waiting;
    unsigned long long exchanged;
    std::vector<char> stack;
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler_context;
static jmp_buf scheduler_place;
static unsigned int current;
static void (*body)();

static void wait_for(Waiting what) {
    fibers[current].waiting = what;
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler_place, 1);
}

static void fiber_main() {
    body();
    fibers[current].waiting = DONE;
    _longjmp(scheduler_place, 1);
}

static void resume(unsigned int index) {
    Fiber &fiber = fibers[index];
    current = index;
    threadIdx = {index, 0, 0};
    fiber.waiting = NOTHING;
    if (_setjmp(scheduler_place)) return;
    if (fiber.started) _longjmp(fiber.place, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

/* Whether every fiber in [begin, end) that is left waits as `what`; then none does any more. */
static bool release(unsigned int begin, unsigned int end, Waiting what) {
    bool any = false;
    for (unsigned int i = begin; i < end; i++) {
        if (fibers[i].waiting != what && fibers[i].waiting != DONE) return false;
        any = any || fibers[i].waiting == what;
    }
    for (unsigned int i = begin; i < end; i++)
        if (fibers[i].waiting == what) fibers[i].waiting = NOTHING;
    return any;
}

static bool run_round(bool backwards) {
    unsigned int count = fibers.size();
    bool ran = false;
    for (unsigned int i = 0; i < count; i++) {
        unsigned int index = backwards ? count - 1 - i : i;
        if (fibers[index].waiting == NOTHING) resume(index), ran = true;
    }
    for (unsigned int warp = 0; warp < count; warp += 32)
        ran = release(warp, warp + 32 < count ? warp + 32 : count, WARP_BARRIER) || ran;
    return release(0, count, BLOCK_BARRIER) || ran;
}

extern char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));

static void run_block(bool backwards) {
    memset(__start_shared_memory, 0xa5, __stop_shared_memory - __start_shared_memory);
    for (Fiber &fiber : fibers) {
        fiber.started = false;
        fiber.waiting = NOTHING;
        fiber.stack.resize(64 * 1024);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler_context;
        makecontext(&fiber.context, fiber_main, 0);
    }
    while (run_round(backwards)) {
    }
    for (Fiber &fiber : fibers)
        if (fiber.waiting != DONE) fprintf(stderr, "threads wait at different barriers\n"), abort();
}

template <typename... Arguments> struct Call {
    static void (*kernel)(Arguments...);
    static std::tuple<Arguments...> values;

    static void run() { std::apply(kernel, values); }

    template <std::size_t... places> static void read(void **arguments, std::index_sequence<places...>) {
        values = std::tuple<Arguments...>(*(Arguments *)arguments[places]...);
    }
};

template <typename... Arguments> void (*Call<Arguments...>::kernel)(Arguments...);
template <typename... Arguments> std::tuple<Arguments...> Call<Arguments...>::values;

template <typename... Arguments>
static void launch(void (*kernel)(Arguments...), const unsigned int *shape, int backwards, void **arguments) {
    Call<Arguments...>::kernel = kernel;
    Call<Arguments...>::read(arguments, std::index_sequence_for<Arguments...>());
    body = Call<Arguments...>::run;
    gridDim = {shape[0], shape[1], shape[2]};
    blockDim = {shape[3], 1, 1};
    fibers.resize(shape[3]);
    for (unsigned int z = 0; z < gridDim.z; z++)
        for (unsigned int y = 0; y < gridDim.y; y++)
            for (unsigned int x = 0; x < gridDim.x; x++) blockIdx = {x, y, z}, run_block(backwards);
}

/* What Python calls: `shape` is the grid's x, y, z and the block's x. */
#define LAUNCHABLE(name)                                                                                      \
    extern "C" void launch_##name(const unsigned int *shape, int backwards, void **arguments) {                       \
        launch(name, shape, backwards, arguments);                                                                    \
    }

static inline void __syncthreads() { wait_for(BLOCK_BARRIER); }

template <typename T> static T from_lane(T value, unsigned int lane) {
    unsigned int index = current, warp = index / 32 * 32;
    T result;
    memcpy(&fibers[index].exchanged, &value, sizeof value);
    wait_for(WARP_BARRIER);
    memcpy(&result, &fibers[warp + lane].exchanged, sizeof value);
    wait_for(WARP_BARRIER);
    return result;
}

template <typename T> static T __shfl_xor_sync(unsigned int, T value, int mask) {
    return from_lane(value, current % 32 ^ mask);
}

template <typename T> static T __shfl_up_sync(unsigned int, T value, int offset) {
    int lane = current % 32;
    return from_lane(value, lane < offset ? lane : lane - offset);
}

template <typename T> static T atomicAdd(T *place, T value) {
    T before = *place;
    *place += value;
    return before;
}

template <typename To, typename From> static To same_bits(From value) {
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

static inline unsigned int __float_as_uint(float value) { return same_bits<unsigned int>(value); }
static inline float __uint_as_float(unsigned int value) { return same_bits<float>(value); }
static inline long long __double_as_longlong(double value) { return same_bits<long long>(value); }
static inline int min(int a, int b) { return a < b ? a : b; }

static inline float half_to_float(unsigned short bits) { return (float)same_bits<_Float16>(bits); }
static inline unsigned short float_to_half(float value) { return same_bits<unsigned short>((_Float16)value); }
