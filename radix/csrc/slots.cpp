#include "slots.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

namespace espalier::radix {
namespace {

constexpr std::array<const char*, 4> state_names = {"FREE", "IN_USE", "CACHED", "PENDING"};
const char* name_of(SlotState state) { return state_names[static_cast<std::size_t>(state)]; }

SlotState state_of(PyObject* object) {
  const std::int64_t value = integer(object);
  if (value < 0 || value > 3) fail("no slot state: %lld", static_cast<long long>(value));
  return static_cast<SlotState>(value);
}

PyTypeObject* pool_type;

SlotLedger& self_of(PyObject* self) { return *reinterpret_cast<SlotPool*>(self)->ledger; }

// -- SlotPool -------------------------------------------------------------------------------

PyObject* create_pool(PyTypeObject*, PyObject* args, PyObject* keywords) {
  static const char* const names[] = {"num_slots", nullptr};
  long long num_slots;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "L", const_cast<char**>(names), &num_slots))
    return nullptr;
  return boundary([&] { return new_pool(num_slots); });
}

void dealloc_pool(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<SlotPool*>(self)->ledger;
  PyObject_Free(self);
  Py_DECREF(type);
}

Ref get_num_slots(PyObject* self) { return integer_object(self_of(self).num_slots()); }

Ref count(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"state"}};
  const auto [state] = signature.parse(call);
  return integer_object(self_of(self).count(state_of(state)));
}

Ref members(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"state"}};
  const auto [state] = signature.parse(call);
  return new_array(self_of(self).members(state_of(state)));
}

Ref supply(PyObject* self, const Call& call) {
  Signature<0>{}.parse(call);
  return new_array(self_of(self).supply());
}

Ref alloc(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"n"}};
  const auto [num] = signature.parse(call);
  return self_of(self).alloc(integer(num));
}

Ref free_slots(PyObject* self, const Call& call) {
  static constexpr Signature<2> signature{{"slots", "source"}, 1};
  const auto [slots, source] = signature.parse(call);
  const ArrayView view(slots);
  self_of(self).move(view.ints(), source == nullptr ? SlotState::in_use : state_of(source),
                     SlotState::free);
  return none();
}

Ref move(PyObject* self, const Call& call) {
  static constexpr Signature<3> signature{{"slots", "source", "target"}};
  const auto [slots, source, target] = signature.parse(call);
  const ArrayView view(slots);
  self_of(self).move(view.ints(), state_of(source), state_of(target));
  return none();
}

PyMethodDef pool_methods[] = {
    method<count>("count"),     method<members>("members"), method<supply>("supply"),
    method<alloc>("alloc"),     method<free_slots>("free"), method<move>("move"),
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef pool_getset[] = {
    {"num_slots", guarded_getter<get_num_slots>, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot pool_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create_pool)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_pool)},
    {Py_tp_methods, pool_methods},
    {Py_tp_getset, pool_getset},
    {0, nullptr},
};
PyType_Spec pool_spec = {"espalier.radix._core.SlotPool", sizeof(SlotPool), 0, Py_TPFLAGS_DEFAULT,
                         pool_slots};

}  // namespace

SlotLedger::SlotLedger(std::int64_t num_slots) : counts_{num_slots, 0, 0, 0} {
  if (num_slots < 0 || num_slots > std::numeric_limits<std::int32_t>::max())
    fail("%lld slots", static_cast<long long>(num_slots));
  states_.resize(static_cast<std::size_t>(num_slots));
  ready_.resize(states_.size());
  std::iota(ready_.begin(), ready_.end(), 0);
}

Vector<std::int32_t> SlotLedger::members(SlotState state) const {
  const auto num = static_cast<std::size_t>(count(state));
  Vector<std::int32_t> found(num);
  for (std::size_t slot = 0, at = 0; at < num; slot++) {
    found[at] = static_cast<std::int32_t>(slot);
    at += states_[slot] == static_cast<std::int8_t>(state) ? 1 : 0;
  }
  return found;
}

Vector<std::int32_t> SlotLedger::supply() const {
  Vector<std::int32_t> found(ready_.begin() + static_cast<std::ptrdiff_t>(taken_),
                                  ready_.end());
  found.insert(found.end(), returned_.begin(), returned_.end());
  return found;
}

Ref SlotLedger::alloc(std::int64_t num) {
  const std::int64_t num_free = count(SlotState::free);
  if (num < 0 || num > num_free)
    fail("%lld slots of %lld free ones", static_cast<long long>(num),
         static_cast<long long>(num_free));
  const auto wanted = static_cast<std::size_t>(num);
  if (wanted > ready_.size() - taken_) refill();
  const Ints slots(ready_.data() + taken_, wanted);
  Ref array = new_array(slots);
  enter(slots, SlotState::free, SlotState::in_use);
  taken_ += wanted;
  return array;
}

void SlotLedger::move(Ints slots, SlotState source, SlotState target) {
  if (source == SlotState::free) fail("free slots leave through alloc only");
  if (source == target) fail("slots are %s already", name_of(target));
  if (target == SlotState::free) make_room_for(slots.size());
  enter(slots, source, target);
  if (target == SlotState::free) returned_.insert(returned_.end(), slots.begin(), slots.end());
}

// A slot that is named again has left `source` by then, so one pass finds every mistake.
void SlotLedger::enter(Ints slots, SlotState source, SlotState target) {
  const auto from = static_cast<std::int8_t>(source), to = static_cast<std::int8_t>(target);
  for (std::size_t i = 0; i < slots.size(); i++) {
    const auto slot = static_cast<std::uint32_t>(slots[i]);
    if (slot >= states_.size() || states_[slot] != from) refuse(slots, i, source, target);
    states_[slot] = to;
  }
  const auto num = static_cast<std::int64_t>(slots.size());
  counts_[static_cast<std::size_t>(source)] -= num;
  counts_[static_cast<std::size_t>(target)] += num;
}

void SlotLedger::refuse(Ints slots, std::size_t at, SlotState source, SlotState target) {
  const Ints before = slots.first(at);
  for (const std::int32_t slot : before)
    states_[static_cast<std::size_t>(slot)] = static_cast<std::int8_t>(source);
  const std::int32_t slot = slots[at];
  if (std::find(before.begin(), before.end(), slot) != before.end())
    fail("a slot comes twice: %d, on its way from %s to %s", static_cast<int>(slot),
         name_of(source), name_of(target));
  fail("slot %d is not %s", static_cast<int>(slot), name_of(source));
}

// What is free is in the ledger, in order; where it is little, sorting that costs less.
void SlotLedger::refill() {
  constexpr std::int64_t dense = 16;
  if (count(SlotState::free) * dense < num_slots()) {
    ready_ = supply();
    std::sort(ready_.begin(), ready_.end());
  } else {
    ready_ = members(SlotState::free);
  }
  taken_ = 0;
  returned_.clear();
}

// Before a slot changes its state: what follows may not fail for want of memory.
void SlotLedger::make_room_for(std::size_t num) {
  const std::size_t needed = returned_.size() + num;
  if (needed > returned_.capacity()) returned_.reserve(std::max(needed, 2 * returned_.capacity()));
}

Ref new_pool(std::int64_t num_slots) {
  auto ledger = std::make_unique<SlotLedger>(num_slots);
  Ref pool = Ref::taken(PyType_GenericAlloc(pool_type, 0));
  reinterpret_cast<SlotPool*>(pool.get())->ledger = ledger.release();
  return pool;
}

SlotLedger& ledger_of(PyObject* pool) {
  if (pool == nullptr || Py_TYPE(pool) != pool_type) fail_type("not a SlotPool");
  return self_of(pool);
}

void add_slot_types(PyObject* module) {
  pool_type = new_type(&pool_spec);
  checked(PyModule_AddType(module, pool_type));
}

}  // namespace espalier::radix
