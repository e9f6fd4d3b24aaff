// Which KV slot is in which state: what radix/slots.py does, in a pass over the slots named.
//
// A call names each slot once, and all of them in the state that it says, or it changes nothing.
#pragma once

#include "py.h"

namespace espalier::radix {

enum class SlotState : std::int8_t { free, in_use, cached, pending };

class SlotLedger {
 public:
  explicit SlotLedger(std::int64_t num_slots);

  std::int64_t num_slots() const { return static_cast<std::int64_t>(states_.size()); }
  std::int64_t count(SlotState state) const { return counts_[static_cast<std::size_t>(state)]; }
  Vector<std::int32_t> members(SlotState state) const;
  Vector<std::int32_t> supply() const;

  Ref alloc(std::int64_t num);
  void move(Ints slots, SlotState source, SlotState target);

 private:
  void enter(Ints slots, SlotState source, SlotState target);
  [[noreturn]] void refuse(Ints slots, std::size_t at, SlotState source, SlotState target);
  void refill();
  void make_room_for(std::size_t num);

  Vector<std::int8_t> states_;
  std::array<std::int64_t, 4> counts_;
  // Free are ready_[taken_:], ascending, and returned_, in any order.
  Vector<std::int32_t> ready_;
  std::size_t taken_ = 0;
  Vector<std::int32_t> returned_;
};

struct SlotPool {
  PyObject_HEAD
  SlotLedger* ledger;
};

Ref new_pool(std::int64_t num_slots);
SlotLedger& ledger_of(PyObject* pool);
void add_slot_types(PyObject* module);

}  // namespace espalier::radix
