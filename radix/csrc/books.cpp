#include "books.h"

#include <algorithm>
#include <cstddef>

namespace espalier::radix {
namespace {

Books& raw(PyObject* self) { return *reinterpret_cast<Books*>(self); }

Books& self_of(PyObject* self) {
  if (raw(self).tree == nullptr) fail_type("no __init__ has been called");
  return raw(self);
}

void assert_locked(const Handle& handle) {
  if (handle.node->lock_count <= 0 || handle.length != handle.node->end)
    fail("not a locked handle: length %lld of %R", handle.length, handle.node);
}

// A new value for `key` if the dictionary has none.
Ref entry(PyObject* dictionary, PyObject* key, PyObject* (*make)(PyObject*)) {
  PyObject* found = PyDict_GetItemWithError(dictionary, key);
  if (found != nullptr) return Ref::of(found);
  if (PyErr_Occurred() != nullptr) throw Raised{};
  Ref made = Ref::taken(make(nullptr));
  checked(PyDict_SetItem(dictionary, key, made.get()));
  return made;
}

void note_unsettled(PyObject* unsettled, Node& node) {
  const Ref nodes = entry(unsettled, node.step, PySet_New);
  checked(PySet_Add(nodes.get(), node.object()));
}

Ref handle_at(const Point& point) { return new_handle(*point.node.get(), point.length); }

// -- the type -------------------------------------------------------------------------------

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(raw(self).tree);
  Py_VISIT(raw(self).leaves);
  Py_VISIT(raw(self).unsettled);
  Py_VISIT(raw(self).pending);
  Py_VISIT(raw(self).observers);
  Py_VISIT(raw(self).now);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(raw(self).tree);
  Py_CLEAR(raw(self).pool);
  Py_CLEAR(raw(self).leaves);
  Py_CLEAR(raw(self).unsettled);
  Py_CLEAR(raw(self).pending);
  Py_CLEAR(raw(self).observers);
  Py_CLEAR(raw(self).now);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

int init(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* const names[] = {"num_slots", "leaves", "now", nullptr};
  long long num_slots;
  PyObject *leaves, *now;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "LOO", const_cast<char**>(names), &num_slots,
                                   &leaves, &now))
    return -1;
  PyObject* done = boundary([&] {
    Books& books = raw(self);
    if (books.tree != nullptr) fail("__init__ has been called before");
    Ref pool = new_pool(num_slots), unsettled = Ref::taken(PyDict_New()),
        pending = Ref::taken(PyDict_New()), observers = Ref::taken(PyList_New(0));
    Owned<RadixTree> tree = new_tree();
    books.pool = pool.release();
    books.leaves = Ref::of(leaves).release();
    books.unsettled = unsettled.release();
    books.pending = pending.release();
    books.observers = observers.release();
    books.now = Ref::of(now).release();
    books.last_step = -1;
    books.tree = tree.release();
    return none();
  });
  Py_XDECREF(done);
  return done == nullptr ? -1 : 0;
}

Ref match_prefix(PyObject* self, const Call& call) {
  static constexpr Signature<3> signature{{"namespace", "ids", "max_len"}, 2};
  const auto [name, ids, max_len] = signature.parse(call);
  RadixTree& tree = self_of(self).radix_tree();
  const ArrayView view(ids);
  Ints wanted = view.ints();
  if (!is_none(max_len)) {  // as a slice ends there
    const std::int64_t limit = integer(max_len), num = static_cast<std::int64_t>(wanted.size());
    const std::int64_t end = std::clamp<std::int64_t>(limit < 0 ? limit + num : limit, 0, num);
    wanted = wanted.first(static_cast<std::size_t>(end));
  }
  const NodeRef root = tree.origin(name);
  return handle_at(tree.descend(*root.get(), 0, wanted));
}

Ref extend_match(PyObject* self, const Call& call) {
  static constexpr Signature<2> signature{{"handle", "ids"}};
  const auto [object, ids] = signature.parse(call);
  const Handle& handle = as_handle(object);
  const ArrayView view(ids);
  return handle_at(self_of(self).radix_tree().descend(*handle.node, handle.length, view.ints()));
}

Ref slots_of(PyObject* self, const Call& call) {
  static constexpr Signature<2> signature{{"handle", "start"}, 1};
  const auto [object, from] = signature.parse(call);
  const Handle& handle = as_handle(object);
  const long long start = from == nullptr ? 0 : integer(from);
  if (start < 0 || start > handle.length)
    fail("no slots of %R from %lld on", object, start);
  const Point point = self_of(self).radix_tree().locate(*handle.node, handle.length);
  if (point.length > self_of(self).ledger().num_slots())
    fail("%R ends beyond the last slot", object);
  Vector<std::int32_t> found(static_cast<std::size_t>(point.length - start));
  long long end = point.length;
  for (const Node* at = point.node.get(); end > start; at = at->parent) {
    if (at == nullptr || end > at->end || end <= at->start())
      fail("the path to %R has a gap at %lld", object, end);
    const Ints run = ints_of_run(at->slots);
    if (static_cast<long long>(run.size()) != at->num_tokens())
      fail("%zu slots for %lld tokens on the path to %R", run.size(), at->num_tokens(), object);
    const long long begin = std::max(start, at->start());
    std::copy(run.begin() + (begin - at->start()), run.begin() + (end - at->start()),
              found.begin() + (begin - start));
    end = begin;
  }
  return new_array(found);
}

Ref lock(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"handle"}};
  const auto [handle] = signature.parse(call);
  return handle_at(self_of(self).lock(as_handle(handle)));
}

Ref note_use(PyObject* self, const Call& call) {
  static constexpr Signature<2> signature{{"handle", "priority"}, 1};
  const auto [handle, priority] = signature.parse(call);
  self_of(self).note_use(as_handle(handle), priority == nullptr ? 0 : integer(priority));
  return none();
}

Ref unlock(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"handle"}};
  const auto [handle] = signature.parse(call);
  self_of(self).unlock(as_handle(handle));
  return none();
}

Ref lease(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"handle"}};
  const auto [handle] = signature.parse(call);
  return handle_at(self_of(self).lease(as_handle(handle)));
}

Ref end_lease(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"handle"}};
  const auto [handle] = signature.parse(call);
  self_of(self).end_lease(as_handle(handle));
  return none();
}

Ref alloc(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"n"}};
  const auto [num] = signature.parse(call);
  return self_of(self).alloc(integer(num));
}

Ref release(PyObject* self, const Call& call) {
  static constexpr Signature<2> signature{{"slots", "after_step"}, 2, 1};
  const auto [slots, after_step] = signature.parse(call);
  const ArrayView view(slots);
  self_of(self).release(view.ints(), after_step);
  return none();
}

Ref promise(PyObject* self, const Call& call) {
  static constexpr Signature<4> signature{{"handle", "ids", "slots", "step"}, 4, 3};
  const auto [handle, ids, slots, step] = signature.parse(call);
  const ArrayView run(ids), places(slots);
  return handle_at(
      self_of(self).promise(as_handle(handle), run.ints(), places.ints(), step));
}

Ref insert(PyObject* self, const Call& call) {
  static constexpr Signature<4> signature{{"handle", "ids", "slots", "after_step"}, 4, 3};
  const auto [handle, ids, slots, after_step] = signature.parse(call);
  const ArrayView run(ids), places(slots);
  return handle_at(
      self_of(self).insert(as_handle(handle), run.ints(), places.ints(), after_step));
}

Ref offer(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"node"}};
  const auto [node] = signature.parse(call);
  self_of(self).offer(as_node(node));
  return none();
}

Ref start_over(PyObject* self, const Call& call) {
  static constexpr Signature<2> signature{{"leaves", "last_step"}};
  const auto [leaves, last_step] = signature.parse(call);
  self_of(self).start_over(leaves, integer(last_step));
  return none();
}

PyMethodDef methods[] = {
    method<match_prefix>("match_prefix"),
    method<extend_match>("extend_match"),
    method<slots_of>("slots_of"),
    method<lock>("lock"),
    method<note_use>("note_use"),
    method<unlock>("unlock"),
    method<lease>("lease"),
    method<end_lease>("end_lease"),
    method<alloc>("alloc"),
    method<release>("release"),
    method<promise>("promise"),
    method<insert>("insert"),
    method<offer>("_offer"),
    method<start_over>("_start_over"),
    {nullptr, nullptr, 0, nullptr},
};

template <SlotState state>
Ref get_count(PyObject* self) {
  return integer_object(self_of(self).ledger().count(state));
}
Ref get_num_slots(PyObject* self) { return integer_object(self_of(self).ledger().num_slots()); }
Ref get_num_available(PyObject* self) { return integer_object(self_of(self).num_available()); }

PyGetSetDef getset[] = {
    {"num_slots", guarded_getter<get_num_slots>, nullptr, nullptr, nullptr},
    {"num_free", guarded_getter<get_count<SlotState::free>>, nullptr, nullptr, nullptr},
    {"num_cached", guarded_getter<get_count<SlotState::cached>>, nullptr, nullptr, nullptr},
    {"num_in_use", guarded_getter<get_count<SlotState::in_use>>, nullptr, nullptr, nullptr},
    {"num_pending", guarded_getter<get_count<SlotState::pending>>, nullptr, nullptr, nullptr},
    {"num_available", guarded_getter<get_num_available>, nullptr, nullptr, nullptr},
    integer_attribute<Books, &Books::last_step>("last_step"),
    integer_attribute<Books, &Books::num_evictable>("_num_evictable"),
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef members[] = {
    {"tree", T_OBJECT_EX, offsetof(Books, tree), READONLY, nullptr},
    {"pool", T_OBJECT_EX, offsetof(Books, pool), READONLY, nullptr},
    {"leaves", T_OBJECT_EX, offsetof(Books, leaves), READONLY, nullptr},
    {"unsettled", T_OBJECT_EX, offsetof(Books, unsettled), READONLY, nullptr},
    {"pending", T_OBJECT_EX, offsetof(Books, pending), READONLY, nullptr},
    {"num_evictable", T_LONGLONG, offsetof(Books, num_evictable), READONLY, nullptr},
    {"num_leased", T_LONGLONG, offsetof(Books, num_leased), READONLY, nullptr},
    {"num_yieldable", T_LONGLONG, offsetof(Books, num_yieldable), READONLY, nullptr},
    {"_observers", T_OBJECT_EX, offsetof(Books, observers), READONLY, nullptr},
    {"_now", T_OBJECT_EX, offsetof(Books, now), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, nullptr},
};
PyType_Spec spec = {"espalier.radix._core.Books", sizeof(Books), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots};

}  // namespace

Point Books::lock(const Handle& handle) {
  Point point = radix_tree().locate(*handle.node, handle.length);
  if (point.length == 0) point.node = radix_tree().plant(*point.node.get());
  if (!radix_tree().holds(*point.node.get()))
    fail("%R is no longer in the tree", point.node.get());
  point.node = node_ending_at(point);
  add_lock(*point.node.get(), nullptr);
  return point;
}

void Books::note_use(const Handle& handle, long long priority) {
  assert_locked(handle);
  for (Node* at = handle.node; at != nullptr; at = at->parent) {
    at->priority = at->use_count != 0 ? std::max(at->priority, priority) : priority;
    at->use_count++;
  }
}

void Books::unlock(const Handle& handle) {
  assert_locked(handle);
  const NodeRef node = NodeRef::of(handle.node);
  clock++;
  const Ref time = Ref::taken(PyObject_CallNoArgs(now));
  const double seconds = number(time.get());
  for (Node* at = node.get(); at != nullptr; at = at->parent) {
    if (at->lock_count <= at->lease_count) fail("unlocked too often: %R", at);
    at->lock_count--;
    at->last_access = clock;
    at->last_used_s = seconds;
    if (at->lock_count == 0)
      num_evictable += at->num_tokens();
    else if (at->lock_count == at->lease_count)
      num_yieldable += at->num_tokens();
  }
  offer(*node.get());
}

Point Books::lease(const Handle& handle) {
  Point point = lock(handle);
  for (Node* at = point.node.get(); at != nullptr; at = at->parent) {
    if (at->lease_count == 0) num_leased += at->num_tokens();
    at->lease_count++;
    if (at->lease_count == at->lock_count) num_yieldable += at->num_tokens();
  }
  return point;
}

void Books::end_lease(const Handle& handle) {
  assert_locked(handle);
  for (Node* at = handle.node; at != nullptr; at = at->parent) {
    if (at->lease_count <= 0) fail("no lease to end: %R", at);
    if (at->lease_count == at->lock_count) num_yieldable -= at->num_tokens();
    at->lease_count--;
    if (at->lease_count == 0) num_leased -= at->num_tokens();
  }
  unlock(handle);
}

Ref Books::alloc(std::int64_t num) {
  if (num > num_available()) return none();
  const std::int64_t missing = num - ledger().count(SlotState::free);
  if (missing > 0)
    call_method(reinterpret_cast<PyObject*>(this), names.evict, integer_object(missing).get());
  const Ref held = Ref::of(pool);
  return ledger().alloc(num);
}

void Books::release(Ints slots, PyObject* after_step) {
  if (is_none(after_step) || integer(after_step) <= last_step) {
    ledger().move(slots, SlotState::in_use, SlotState::free);
  } else if (!slots.empty()) {
    ledger().move(slots, SlotState::in_use, SlotState::pending);
    const Ref waiting = entry(pending, after_step, [](PyObject*) { return PyList_New(0); });
    checked(PyList_Append(waiting.get(), new_array(slots).get()));
  }
}

Point Books::promise(const Handle& handle, Ints ids, Ints slots, PyObject* step) {
  assert_locked(handle);
  if (integer(step) <= last_step)
    fail("step %R is over already (last: %lld)", step, last_step);
  return grow(*handle.node, ids, slots, step);
}

Point Books::insert(const Handle& handle, Ints ids, Ints slots, PyObject* after_step) {
  assert_locked(handle);
  if (ids.size() != slots.size()) fail("%zu ids for %zu slots", ids.size(), slots.size());
  Point point = radix_tree().descend(*handle.node, handle.length, ids);
  point.node = node_ending_at(point);
  add_lock(*point.node.get(), handle.node);
  const auto known = static_cast<std::size_t>(point.length - handle.length);
  release(slots.first(known), after_step);
  if (known == ids.size()) return point;
  return grow(*point.node.get(), ids.subspan(known), slots.subspan(known), nullptr);
}

// A node has lost a lock or a child: an idle leaf is evictable, an idle root goes.
void Books::offer(Node& node) {
  if (node.lock_count != 0 || node.has_children()) return;
  if (node.is_root())
    radix_tree().uproot(node);
  else
    call_method(Ref::of(leaves).get(), names.add, node.object());
}

void Books::start_over(PyObject* new_leaves, long long step) {
  const Ref fresh = new_pool(ledger().num_slots());
  const Ref former_pool = Ref::of(pool), former_leaves = Ref::of(leaves);
  Py_DECREF(std::exchange(pool, Ref::of(fresh.get()).release()));
  Py_DECREF(std::exchange(leaves, Ref::of(new_leaves).release()));
  last_step = step;
  num_evictable = num_leased = num_yieldable = 0;
  PyDict_Clear(unsettled);
  PyDict_Clear(pending);
  PyDict_Clear(radix_tree().roots);
}

NodeRef Books::node_ending_at(const Point& point) {
  if (point.length == point.node->end) return point.node;
  NodeRef upper = split(*point.node.get(), point.length);
  if (!is_none(upper->step)) note_unsettled(unsettled, *upper.get());
  tell(names.split, *upper.get(), point.node.get());
  return upper;
}

// One more lock on a node and those above it, up to `above`, which has it already.
void Books::add_lock(Node& node, Node* above) {
  for (NodeRef at = NodeRef::of(&node); at && at.get() != above; at = NodeRef::of(at->parent)) {
    if (at->lock_count == 0) {
      num_evictable -= at->num_tokens();
      if (!is_none(at->ticket)) call_method(Ref::of(leaves).get(), names.discard, at.as_object());
    } else if (at->lock_count == at->lease_count) {
      num_yieldable -= at->num_tokens();
    }
    at->lock_count++;
  }
}

Point Books::grow(Node& parent, Ints ids, Ints slots, PyObject* step) {
  if (ids.size() != slots.size() || ids.empty())
    fail("%zu ids for %zu slots", ids.size(), slots.size());
  NodeRef node = new_node(run_of(ids), run_of(slots), &parent,
                          parent.end + static_cast<long long>(ids.size()));
  node->step = Ref::of(step).release();
  node->lock_count = 1;
  node->run = num_runs++;
  attach(*node.get());
  ledger().move(slots, SlotState::in_use, SlotState::cached);
  if (!is_none(step)) note_unsettled(unsettled, *node.get());
  tell(names.attached, *node.get(), nullptr);
  return {node, node->end};
}

void Books::tell(PyObject* change, Node& first, Node* second) {
  for (Py_ssize_t i = 0; i < PyList_Size(observers); i++) {
    const Ref observer = Ref::of(PyList_GetItem(observers, i));
    call_method(observer.get(), change, first.object(),
                second == nullptr ? nullptr : second->object());
  }
}

void add_books_type(PyObject* module) {
  PyTypeObject* type = new_type(&spec);
  checked(PyModule_AddType(module, type));
}

}  // namespace espalier::radix
