// Threads that work on one job in step; know nothing of what they do.
//
// `Pool::run` starts the same function on every thread and returns when all are done. Within
// it, `Team::barrier` lines them up, and `Team::take` deals out the pieces of a phase: to each
// thread its own share in order, as memory is read fastest where each core walks one way through
// it, then what is left of the others': a thread that the system has put aside holds up no more
// than one piece. A thread that waits spins for a moment, then parks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace espalier {

class Team;

class Pool {
 public:
  // `num_threads` >= 1 counts the caller of `run`. With `cpus`, one for each, each thread stays
  // on its own from then on, the caller's on the first: the system would leave two of them on
  // one CPU for milliseconds when a third thread has woken up for a moment.
  Pool(int num_threads, std::vector<int> cpus);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }

  // `work` must not throw. One caller at a time: std::logic_error for a second one.
  void run(const std::function<void(Team&)>& work);

 private:
  friend class Team;

  static constexpr std::size_t max_phases = 8;  // between two barriers
  struct alignas(64) Taken {
    std::atomic<std::int64_t> count{0};
  };

  // How much of a thread's share of a phase is taken.
  std::atomic<std::int64_t>& taken(std::size_t phase, int owner) {
    return taken_[phase * static_cast<std::size_t>(size_) + static_cast<std::size_t>(owner)].count;
  }

  void serve(int index);
  void stay(int index) const;
  void stop();

  const int size_;
  const std::vector<int> cpus_;
  const std::uint64_t number_;  // tells this pool from any other there has been
  const std::function<void(Team&)>* work_ = nullptr;
  std::vector<Taken> taken_;  // [phase][owner]
  alignas(64) std::atomic<std::uint32_t> job_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  std::atomic<bool> stopping_{false}, is_running_{false};
  std::vector<std::thread> threads_;
};

// One thread's view of a running job.
class Team {
 public:
  int index() const { return index_; }
  int size() const { return pool_.size_; }

  // Wait until every thread of the job is here. What any of them wrote before, all see after.
  void barrier();

  // Call `work(begin, end)` for pieces of [0, count), `grain` long but for the last: each piece
  // goes to exactly one thread. All threads call this in the same order with the same
  // arguments; only a barrier makes sure that the others' pieces are done.
  template <class Work>
  void take(std::int64_t count, std::int64_t grain, const Work& work) {
    if (pool_.size_ == 1) {
      if (count > 0) work(std::int64_t{0}, count);
      return;
    }
    assert(phase_ < Pool::max_phases);
    const std::size_t phase = phase_++;
    const int shares = num_shares(count, grain);
    for (int i = 0; i < shares; i++) {
      const int owner = (index() + i) % shares;
      const std::int64_t share_end = count * (owner + 1) / shares;
      const std::int64_t share_begin = count * owner / shares;
      std::atomic<std::int64_t>& taken = pool_.taken(phase, owner);
      for (;;) {
        const std::int64_t begin = share_begin + taken.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= share_end) break;
        work(begin, std::min(begin + grain, share_end));
      }
    }
  }

  // How far from a piece the one begins that the same thread is likely to take next.
  std::int64_t stride(std::int64_t count, std::int64_t grain) const {
    return num_shares(count, grain) == 1 ? grain * size() : grain;
  }

  // A grain that gives every thread several pieces, so that none waits long for the last one.
  std::int64_t grain(std::int64_t count) const {
    return std::max<std::int64_t>(1, count / (8 * size()));
  }

 private:
  friend class Pool;

  // Few pieces are dealt out first come, first served.
  int num_shares(std::int64_t count, std::int64_t grain) const {
    return count < 4 * grain * size() ? 1 : size();
  }

  Team(Pool& pool, int index) : pool_(pool), index_(index) {}

  Pool& pool_;
  int index_;
  std::size_t phase_ = 0;
};

}  // namespace espalier
