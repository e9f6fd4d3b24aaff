#include "node.h"

#include <cstddef>

namespace espalier::radix {
namespace {

PyTypeObject* node_type;
PyTypeObject* handle_type;

Ref optional(PyObject* object) { return object == nullptr ? none() : Ref::of(object); }
Node& node_of(PyObject* self) { return *reinterpret_cast<Node*>(self); }
Handle& handle_of(PyObject* self) { return *reinterpret_cast<Handle*>(self); }

// -- Node -----------------------------------------------------------------------------------

int traverse_node(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(node_of(self).parent);
  Py_VISIT(node_of(self).children);
  Py_VISIT(node_of(self).step);
  Py_VISIT(node_of(self).name);
  Py_VISIT(node_of(self).ticket);
  return 0;
}

// Lets go of a chain of parents one by one: released in depth, a long one would exhaust the stack.
void release_parents(Node* node) {
  Node* up = std::exchange(node->parent, nullptr);
  while (up != nullptr && Py_REFCNT(up->object()) == 1) {
    Node* next = std::exchange(up->parent, nullptr);
    Py_DECREF(up->object());
    up = next;
  }
  if (up != nullptr) Py_DECREF(up->object());
}

int clear_node(PyObject* self) {
  release_parents(&node_of(self));
  Py_CLEAR(node_of(self).children);
  Py_CLEAR(node_of(self).step);
  Py_CLEAR(node_of(self).name);
  Py_CLEAR(node_of(self).ticket);
  return 0;
}

void dealloc_node(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_node(self);
  Py_CLEAR(node_of(self).key);
  Py_CLEAR(node_of(self).slots);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// What a node refers to besides nodes is of kinds that don't lead to another one by one: released
// in depth, a long chain of them would exhaust the stack.
void set_optional_integer(PyObject*& place, PyObject* value) {
  if (value != Py_None && PyLong_Check(value) == 0) fail_type("an int or None, not %R", value);
  Py_XDECREF(std::exchange(place, Ref::of(value).release()));
}
Ref get_step(PyObject* self) { return optional(node_of(self).step); }
Ref get_ticket(PyObject* self) { return optional(node_of(self).ticket); }
Ref get_name(PyObject* self) { return optional(node_of(self).name); }
void set_step(PyObject* self, PyObject* value) { set_optional_integer(node_of(self).step, value); }
void set_ticket(PyObject* self, PyObject* value) {
  set_optional_integer(node_of(self).ticket, value);
}
void set_name(PyObject* self, PyObject* value) {
  if (value != Py_None && PyTuple_Check(value) == 0) fail_type("a tuple or None, not %R", value);
  Py_XDECREF(std::exchange(node_of(self).name, Ref::of(value).release()));
}

PyObject* create_node(PyTypeObject*, PyObject* args, PyObject* keywords) {
  static const char* const names[] = {
      "key",         "slots",     "parent",   "end",         "step",   "namespace", "lock_count",
      "lease_count", "run",       "last_access", "use_count", "priority", "last_used_s",
      "ticket",      nullptr};
  PyObject *key, *slots, *parent, *step = nullptr, *name = nullptr, *ticket = nullptr;
  long long end, lock_count = 0, lease_count = 0, run = -1, last_access = 0, use_count = 0,
                 priority = 0;
  double last_used_s = 0.0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOL|OOLLLLLLdO", const_cast<char**>(names),
                                   &key, &slots, &parent, &end, &step, &name, &lock_count,
                                   &lease_count, &run, &last_access, &use_count, &priority,
                                   &last_used_s, &ticket))
    return nullptr;
  return boundary([&] {
    Node* above = is_none(parent) ? nullptr : &as_node(parent);
    const ArrayView ids(key), places(slots);
    NodeRef node = new_node(run_of(ids.ints()), run_of(places.ints()), above, end);
    if (step != nullptr) set_step(node.as_object(), step);
    if (name != nullptr) set_name(node.as_object(), name);
    if (ticket != nullptr) set_ticket(node.as_object(), ticket);
    node->lock_count = lock_count;
    node->lease_count = lease_count;
    node->run = run;
    node->last_access = last_access;
    node->use_count = use_count;
    node->priority = priority;
    node->last_used_s = last_used_s;
    return node;
  });
}

Ref repr_of(Node& node) {
  const Ref ids = array_of_run(node.key);
  return Ref::taken(PyUnicode_FromFormat("Node(%lld..%lld, ids %S, locks=%lld, step=%S)",
                                         node.start(), node.end, ids.get(), node.lock_count,
                                         node.step == nullptr ? Py_None : node.step));
}
PyObject* repr_node(PyObject* self) {
  return boundary([&] { return repr_of(node_of(self)); });
}

Ref get_key(PyObject* self) { return array_of_run(node_of(self).key); }
Ref get_slots(PyObject* self) { return array_of_run(node_of(self).slots); }
Ref get_start(PyObject* self) { return integer_object(node_of(self).start()); }
Ref get_is_root(PyObject* self) { return truth(node_of(self).is_root()); }
Ref get_parent(PyObject* self) {
  Node* parent = node_of(self).parent;
  return parent == nullptr ? none() : Ref::of(parent->object());
}
Ref get_children(PyObject* self) {
  PyObject*& children = node_of(self).children;
  if (children == nullptr) children = Ref::taken(PyDict_New()).release();
  return Ref::of(children);
}
void replace_run(PyObject*& place, PyObject* array) {
  const ArrayView values(array);
  Py_DECREF(std::exchange(place, run_of(values.ints()).release()));
}
void set_key(PyObject* self, PyObject* value) { replace_run(node_of(self).key, value); }
void set_slots(PyObject* self, PyObject* value) { replace_run(node_of(self).slots, value); }
void set_parent(PyObject* self, PyObject* value) {
  node_of(self).set_parent(is_none(value) ? nullptr : &as_node(value));
}

Ref get_last_used_s(PyObject* self) {
  return Ref::taken(PyFloat_FromDouble(node_of(self).last_used_s));
}
void set_last_used_s(PyObject* self, PyObject* value) { node_of(self).last_used_s = number(value); }

PyGetSetDef node_getset[] = {
    {"key", guarded_getter<get_key>, guarded_setter<set_key>, nullptr, nullptr},
    {"slots", guarded_getter<get_slots>, guarded_setter<set_slots>, nullptr, nullptr},
    {"parent", guarded_getter<get_parent>, guarded_setter<set_parent>, nullptr, nullptr},
    {"children", guarded_getter<get_children>, nullptr, nullptr, nullptr},
    {"start", guarded_getter<get_start>, nullptr, nullptr, nullptr},
    {"is_root", guarded_getter<get_is_root>, nullptr, nullptr, nullptr},
    {"step", guarded_getter<get_step>, guarded_setter<set_step>, nullptr, nullptr},
    {"namespace", guarded_getter<get_name>, guarded_setter<set_name>, nullptr, nullptr},
    {"ticket", guarded_getter<get_ticket>, guarded_setter<set_ticket>, nullptr, nullptr},
    integer_attribute<Node, &Node::end>("end"),
    integer_attribute<Node, &Node::lock_count>("lock_count"),
    integer_attribute<Node, &Node::lease_count>("lease_count"),
    integer_attribute<Node, &Node::run>("run"),
    integer_attribute<Node, &Node::last_access>("last_access"),
    integer_attribute<Node, &Node::use_count>("use_count"),
    integer_attribute<Node, &Node::priority>("priority"),
    {"last_used_s", guarded_getter<get_last_used_s>, guarded_setter<set_last_used_s>, nullptr,
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot node_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create_node)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_node)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_node)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_node)},
    {Py_tp_repr, reinterpret_cast<void*>(repr_node)},
    {Py_tp_getset, node_getset},
    {0, nullptr},
};
PyType_Spec node_spec = {"espalier.radix._core.Node", sizeof(Node), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, node_slots};

// -- Handle ---------------------------------------------------------------------------------

// No circle leads through a handle: no node knows one. So Python's collector needn't see them.
void dealloc_handle(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(reinterpret_cast<PyObject*>(handle_of(self).node));
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* create_handle(PyTypeObject*, PyObject* args, PyObject* keywords) {
  static const char* const names[] = {"node", "length", nullptr};
  PyObject* node;
  long long length;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OL", const_cast<char**>(names), &node,
                                   &length))
    return nullptr;
  return boundary([&] { return new_handle(as_node(node), length); });
}

PyObject* compare_handles(PyObject* self, PyObject* other, int how) {
  if (Py_TYPE(other) != handle_type || (how != Py_EQ && how != Py_NE))
    return Py_NewRef(Py_NotImplemented);
  const Handle &a = handle_of(self), &b = handle_of(other);
  return truth((a.node == b.node && a.length == b.length) == (how == Py_EQ)).release();
}

Py_hash_t hash_handle(PyObject* self) {
  const auto address = reinterpret_cast<std::uintptr_t>(handle_of(self).node);
  const auto mixed = (address >> 4) * 1000003u ^ static_cast<std::uintptr_t>(handle_of(self).length);
  return static_cast<Py_hash_t>(mixed >> 1);
}

PyObject* repr_handle(PyObject* self) {
  return PyUnicode_FromFormat("Handle(node=%R, length=%lld)", handle_of(self).node,
                              handle_of(self).length);
}

PyMemberDef handle_members[] = {
    {"node", T_OBJECT, offsetof(Handle, node), READONLY, nullptr},
    {"length", T_LONGLONG, offsetof(Handle, length), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot handle_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create_handle)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_handle)},
    {Py_tp_richcompare, reinterpret_cast<void*>(compare_handles)},
    {Py_tp_hash, reinterpret_cast<void*>(hash_handle)},
    {Py_tp_repr, reinterpret_cast<void*>(repr_handle)},
    {Py_tp_members, handle_members},
    {0, nullptr},
};
PyType_Spec handle_spec = {"espalier.radix._core.Handle", sizeof(Handle), 0, Py_TPFLAGS_DEFAULT,
                           handle_slots};

}  // namespace

NodeRef Node::child(std::int32_t id) {
  if (children == nullptr) return {};
  const Ref first = integer_object(id);
  PyObject* found = PyDict_GetItemWithError(children, first.get());
  if (found != nullptr) return NodeRef::of(&as_node(found));
  if (PyErr_Occurred() != nullptr) throw Raised{};
  return {};
}

void Node::set_child(std::int32_t id, Node& child) {
  if (children == nullptr) children = Ref::taken(PyDict_New()).release();
  checked(PyDict_SetItem(children, integer_object(id).get(), child.object()));
}

void Node::remove_child(std::int32_t id) {
  if (children == nullptr || PyDict_DelItem(children, integer_object(id).get()) < 0)
    fail("%R has no child that begins with %d", object(), static_cast<int>(id));
}

std::vector<NodeRef> Node::children_in_order() {
  std::vector<NodeRef> found;
  if (children == nullptr) return found;
  PyObject *first, *value;
  for (Py_ssize_t at = 0; PyDict_Next(children, &at, &first, &value) != 0;)
    found.push_back(NodeRef::of(&as_node(value)));
  return found;
}

void Node::set_parent(Node* node) {
  if (node != nullptr) Py_INCREF(node->object());
  Node* former = std::exchange(parent, node);
  if (former != nullptr) Py_DECREF(former->object());
}

NodeRef new_node(Ref key, Ref slots, Node* parent, long long end) {
  NodeRef node = NodeRef::taken(PyType_GenericAlloc(node_type, 0));
  node->key = key.release();
  node->slots = slots.release();
  node->end = end;
  node->run = -1;
  node->set_parent(parent);
  return node;
}

Ref new_handle(Node& node, long long length) {
  Ref handle = Ref::taken(PyType_GenericAlloc(handle_type, 0));
  Py_INCREF(node.object());
  handle_of(handle.get()).node = &node;
  handle_of(handle.get()).length = length;
  return handle;
}

Node& as_node(PyObject* object) {
  if (Py_TYPE(object) != node_type) fail_type("a Node, not %R", object);
  return node_of(object);
}

Handle& as_handle(PyObject* object) {
  if (Py_TYPE(object) != handle_type) fail_type("a Handle, not %R", object);
  return handle_of(object);
}

void add_node_types(PyObject* module) {
  node_type = new_type(&node_spec);
  handle_type = new_type(&handle_spec);
  checked(PyModule_AddType(module, node_type));
  checked(PyModule_AddType(module, handle_type));
}

}  // namespace espalier::radix
