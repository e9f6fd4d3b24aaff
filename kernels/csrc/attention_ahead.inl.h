// Memory asked for before it is needed. A processor drops prefetches that come in bursts, so
// that a loop asks for one line a turn; and it reads best what lies side by side, so that whole
// slots are asked for, of all heads that will be computed.
#pragma once

namespace espalier::ESPALIER_ISA {

// The keys, then the values of some slots.
class Ahead {
 public:
  Ahead() = default;

  // Of each slot `nbytes` from `keys` and from `values` on, slots being `stride` bytes apart.
  Ahead(const std::int32_t* slots, std::int32_t length, const char* keys, const char* values,
        std::int64_t nbytes, std::int64_t stride)
      : first_(slots), next_(slots), end_(slots + length), pool_(keys), values_(values),
        nbytes_(nbytes), stride_(stride) {
    begin_slot();
  }

  bool is_done() const { return next_ == end_; }

  [[gnu::always_inline]] void line() {
    __builtin_prefetch(at_);
    at_ += 64;
    if (at_ >= slot_end_) end_slot();
  }

 private:
  void begin_slot() {
    at_ = pool_ + *next_ * stride_;
    slot_end_ = at_ + nbytes_;
  }

  void end_slot() {
    if (!is_done()) next_++;
    if (is_done() && pool_ != values_) {
      pool_ = values_;
      next_ = first_;
    }
    if (is_done())
      at_ -= 64;
    else
      begin_slot();
  }

  const std::int32_t *first_ = nullptr, *next_ = nullptr, *end_ = nullptr;
  const char *pool_ = nullptr, *values_ = nullptr;
  std::int64_t nbytes_ = 0, stride_ = 0;
  const char *at_ = nullptr, *slot_end_ = nullptr;
};

// There is nothing to ask for.
struct NothingAhead {
  void line() {}
};

}  // namespace espalier::ESPALIER_ISA
