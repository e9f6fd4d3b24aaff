// What this machine can do at best: one thread's first writes to new memory, and on all given
// threads at once reads of memory, and multiply-add loops that touch nothing but registers, with
// the widest instructions that it has. Prints one line a figure.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Keep the calling thread on the index-th of the processors that the program may use.
void stay(int index) {
  cpu_set_t allowed, own;
  sched_getaffinity(0, sizeof allowed, &allowed);
  CPU_ZERO(&own);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &allowed) && seen++ == index) CPU_SET(cpu, &own);
  if (CPU_COUNT(&own) == 1) sched_setaffinity(0, sizeof own, &own);
}

// The rate at which all threads together do `work(thread)`, each `amount`: best of several.
template <class Work>
double best_rate(int num_threads, double amount, const Work& work) {
  double best = 0;
  for (int repeat = 0; repeat < 7; repeat++) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    std::vector<Clock::time_point> begins(num_threads), ends(num_threads);
    for (int t = 0; t < num_threads; t++)
      threads.emplace_back([&, t] {
        stay(t);
        ready++;
        while (ready < num_threads) {
        }
        begins[t] = Clock::now();
        work(t);
        ends[t] = Clock::now();
      });
    for (std::thread& thread : threads) thread.join();
    const auto begin = *std::min_element(begins.begin(), begins.end());
    const auto end = *std::max_element(ends.begin(), ends.end());
    best = std::max(best, num_threads * amount / std::chrono::duration<double>(end - begin).count());
  }
  return best;
}

constexpr std::size_t read_nbytes = 256u << 20;

// GB/s of huge pages that are touched for the first time since the program has them.
double touch_rate(char* memory, std::size_t nbytes) {
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < nbytes; i += 4096) memory[i] = 1;
  const std::chrono::duration<double> taken = Clock::now() - begin;
  return static_cast<double>(nbytes) / 1e9 / taken.count();
}

constexpr long turns = 4'000'000;

#if defined(__x86_64__)
__attribute__((target("avx2"))) void read_all(const char* begin) {
  for (const char* p = begin; p < begin + read_nbytes; p += 128)
    asm volatile(
        "vmovdqa (%0), %%ymm0\n vmovdqa 32(%0), %%ymm1\n"
        "vmovdqa 64(%0), %%ymm2\n vmovdqa 96(%0), %%ymm3\n" ::"r"(p)
        : "xmm0", "xmm1", "xmm2", "xmm3");
}

#define FOUR(op, a, b, c, d) op(a) op(b) op(c) op(d)
#define CLOBBERED                                                                          \
  "rcx", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
      "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define LOOP(body) \
  asm volatile("mov %0, %%rcx\n 1:\n" body "dec %%rcx\n jnz 1b\n" ::"r"(turns) : CLOBBERED)

// Twelve independent chains a turn.
#define FMA(r) "vfmadd231ps %%ymm15, %%ymm15, %%ymm" #r "\n"
void fma_loop() { LOOP(FOUR(FMA, 0, 1, 2, 3) FOUR(FMA, 4, 5, 6, 7) FOUR(FMA, 8, 9, 10, 11)); }

// maddubs, madd, add: 32 products of bytes into 8 sums of 32 bits.
#define BYTES(r)                                                                     \
  "vpmaddubsw %%ymm15, %%ymm15, %%ymm12\n vpmaddwd %%ymm14, %%ymm12, %%ymm12\n" \
  "vpaddd %%ymm12, %%ymm" #r ", %%ymm" #r "\n"
void byte_loop() { LOOP(FOUR(BYTES, 0, 1, 2, 3) FOUR(BYTES, 4, 5, 6, 7)); }

// maddubs, add: the same into 16 sums of 16 bits, where 4-bit weights leave room for them.
#define SHORTS(r) \
  "vpmaddubsw %%ymm15, %%ymm15, %%ymm12\n vpaddw %%ymm12, %%ymm" #r ", %%ymm" #r "\n"
void nibble_loop() { LOOP(FOUR(SHORTS, 0, 1, 2, 3) FOUR(SHORTS, 4, 5, 6, 7)); }

// The same in registers twice as wide; with VNNI, one instruction for all of BYTES.
#define WIDE_FMA(r) "vfmadd231ps %%zmm15, %%zmm15, %%zmm" #r "\n"
#define WIDE_BYTES(r)                                                                \
  "vpmaddubsw %%zmm15, %%zmm15, %%zmm12\n vpmaddwd %%zmm14, %%zmm12, %%zmm12\n" \
  "vpaddd %%zmm12, %%zmm" #r ", %%zmm" #r "\n"
#define WIDE_SHORTS(r) \
  "vpmaddubsw %%zmm15, %%zmm15, %%zmm12\n vpaddw %%zmm12, %%zmm" #r ", %%zmm" #r "\n"
#define VNNI_BYTES(r) "vpdpbusd %%zmm15, %%zmm15, %%zmm" #r "\n"
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vnni")))
WIDE void wide_fma_loop() {
  LOOP(FOUR(WIDE_FMA, 0, 1, 2, 3) FOUR(WIDE_FMA, 4, 5, 6, 7) FOUR(WIDE_FMA, 8, 9, 10, 11));
}
WIDE void wide_byte_loop() { LOOP(FOUR(WIDE_BYTES, 0, 1, 2, 3) FOUR(WIDE_BYTES, 4, 5, 6, 7)); }
WIDE void wide_nibble_loop() {
  LOOP(FOUR(WIDE_SHORTS, 0, 1, 2, 3) FOUR(WIDE_SHORTS, 4, 5, 6, 7));
}
WIDE void vnni_loop() {
  LOOP(FOUR(VNNI_BYTES, 0, 1, 2, 3) FOUR(VNNI_BYTES, 4, 5, 6, 7) FOUR(VNNI_BYTES, 8, 9, 10, 11));
}

struct Loop {
  void (*run)();
  double num_ops;  // multiplications and additions
};
struct Loops {
  Loop fma, byte, nibble;
};

Loops best_loops() {
  if (!__builtin_cpu_supports("avx512bw"))
    return {{fma_loop, turns * 12. * 16},
            {byte_loop, turns * 8. * 64},
            {nibble_loop, turns * 8. * 64}};
  const Loop fma{wide_fma_loop, turns * 12. * 32};
  if (__builtin_cpu_supports("avx512vnni")) {
    const Loop vnni{vnni_loop, turns * 12. * 128};
    return {fma, vnni, vnni};
  }
  return {fma, {wide_byte_loop, turns * 8. * 128}, {wide_nibble_loop, turns * 8. * 128}};
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
#if defined(__x86_64__)
  const std::size_t nbytes = read_nbytes * num_threads;
  void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(memory, nbytes, MADV_HUGEPAGE);
  char* bytes = static_cast<char*>(memory);
  std::printf("touch_gb_s %.2f\n", touch_rate(bytes, nbytes));
  madvise(memory, nbytes, MADV_DONTNEED);  // to the system, which has not given it to its host yet
  std::printf("touch_again_gb_s %.2f\n", touch_rate(bytes, nbytes));
  const auto read = [&](int thread) { read_all(bytes + thread * read_nbytes); };
  std::printf("read_gb_s %.2f\n", best_rate(num_threads, read_nbytes / 1e9, read));
  const auto print = [&](const char* name, const Loop& loop) {
    std::printf("%s %.2f\n", name,
                best_rate(num_threads, loop.num_ops / 1e9, [&](int) { loop.run(); }));
  };
  const Loops loops = best_loops();
  print("fma_gflop_s", loops.fma);
  print("byte_gop_s", loops.byte);
  print("nibble_gop_s", loops.nibble);
#else
  std::fprintf(stderr, "ceilings are known for x86-64 only\n");
  return 1;
#endif
}
