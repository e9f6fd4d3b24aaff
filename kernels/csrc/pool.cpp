#include "pool.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#ifdef __linux__
#include <sched.h>
#endif

namespace espalier {
namespace {

// How long a thread spins before it parks: longer than a phase of a decode step takes, and
// than the gap between two steps, as waking a parked thread costs tens of microseconds.
constexpr std::chrono::microseconds spin_time{200};
constexpr int pauses_between_looks = 64;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::atomic<std::uint64_t> num_pools{0};

// Wait until `value` is no longer `old`.
void await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + spin_time;
  do {
    for (int i = 0; i < pauses_between_looks; i++) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

Pool::Pool(int num_threads, std::vector<int> cpus)
    : size_(num_threads),
      cpus_(std::move(cpus)),
      number_(++num_pools),
      taken_(max_phases * static_cast<std::size_t>(num_threads)) {
  threads_.reserve(static_cast<std::size_t>(num_threads - 1));
  try {
    for (int index = 1; index < num_threads; index++)
      threads_.emplace_back([this, index] { serve(index); });
  } catch (...) {  // the system gives no more: a thread that is not joined would end the process
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_seq_cst);
  job_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Have the calling thread stay where it belongs. Where the system does not allow it, it goes on
// to choose.
void Pool::stay(int index) const {
#ifdef __linux__
  thread_local std::uint64_t stays_for = 0;
  if (cpus_.empty() || stays_for == number_) return;
  stays_for = number_;
  cpu_set_t place;
  CPU_ZERO(&place);
  CPU_SET(static_cast<std::size_t>(cpus_[static_cast<std::size_t>(index)]), &place);
  sched_setaffinity(0, sizeof place, &place);
#else
  static_cast<void>(index);
#endif
}

void Pool::run(const std::function<void(Team&)>& work) {
  if (is_running_.exchange(true, std::memory_order_acquire))
    throw std::logic_error("the pool is at work for another caller");
  stay(0);
  work_ = &work;
  job_.fetch_add(1, std::memory_order_seq_cst);
  job_.notify_all();
  Team team(*this, 0);
  work(team);
  team.barrier();
  is_running_.store(false, std::memory_order_release);
}

void Pool::serve(int index) {
  stay(index);
  for (std::uint32_t job = 0;; job++) {
    await_change(job_, job);
    if (stopping_.load(std::memory_order_relaxed)) return;
    Team team(*this, index);
    (*work_)(team);
    team.barrier();
  }
}

void Team::barrier() {
  if (pool_.size_ == 1) return;
  const std::uint32_t generation = pool_.generation_.load(std::memory_order_relaxed);
  if (pool_.arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < pool_.size_) {
    await_change(pool_.generation_, generation);
  } else {  // the last one: all others wait, so nobody is in a phase
    pool_.arrived_.store(0, std::memory_order_relaxed);
    for (std::size_t phase = 0; phase < phase_; phase++)
      for (int owner = 0; owner < pool_.size_; owner++)
        pool_.taken(phase, owner).store(0, std::memory_order_relaxed);
    // seq_cst: notify_all looks whether anybody is parked, and libstdc++ has nothing that keeps
    // this look from coming before the store. Who parks in between would sleep for good.
    pool_.generation_.store(generation + 1, std::memory_order_seq_cst);
    pool_.generation_.notify_all();
  }
  phase_ = 0;
}

}  // namespace espalier
