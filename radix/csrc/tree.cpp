#include "tree.h"

#include <cstddef>
#include <memory>

namespace espalier::radix {
namespace {

PyTypeObject* tree_type;

RadixTree& tree_of(PyObject* self) { return *reinterpret_cast<RadixTree*>(self); }

// Of a run, what lies from `first` on; both were counted apart, and must agree.
Ints from(Ints run, long long first) {
  if (first < 0 || first > static_cast<long long>(run.size()))
    fail("%lld tokens of a run of %zu", first, run.size());
  return run.subspan(static_cast<std::size_t>(first));
}

std::int32_t first_id(Node& node) {
  const Ints ids = node.ids();
  if (ids.empty()) fail("%R has no tokens", node.object());
  return ids[0];
}

// -- a walk over all nodes ------------------------------------------------------------------

// One root after the other; its nodes are gathered when the walk comes to them.
struct Walk {
  std::vector<NodeRef> roots;
  std::size_t next_root = 0;
  std::vector<NodeRef> stack;

  NodeRef next() {
    while (stack.empty() && next_root < roots.size())
      stack = roots[next_root++]->children_in_order();
    if (stack.empty()) return {};
    NodeRef node = std::move(stack.back());
    stack.pop_back();
    for (NodeRef& child : node->children_in_order()) stack.push_back(std::move(child));
    return node;
  }
};

struct Walker {
  PyObject_HEAD
  Walk* work;
};
PyTypeObject* walker_type;

PyObject* next_node(PyObject* self) {
  return boundary([&] { return reinterpret_cast<Walker*>(self)->work->next(); });
}

void dealloc_walker(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Walker*>(self)->work;
  PyObject_Free(self);
  Py_DECREF(type);
}

PyType_Slot walker_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_walker)},
    {Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)},
    {Py_tp_iternext, reinterpret_cast<void*>(next_node)},
    {0, nullptr},
};
PyType_Spec walker_spec = {"espalier.radix._core.Walker", sizeof(Walker), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, walker_slots};

// -- RadixTree ------------------------------------------------------------------------------

int traverse_tree(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(tree_of(self).roots);
  return 0;
}

int clear_tree(PyObject* self) {
  Py_CLEAR(tree_of(self).roots);
  return 0;
}

void dealloc_tree(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_tree(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyObject* create_tree(PyTypeObject*, PyObject* args, PyObject* keywords) {
  static const char* const names[] = {nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "", const_cast<char**>(names))) return nullptr;
  return boundary([] { return new_tree(); });
}

Ref handle_of(const Point& point) { return new_handle(*point.node.get(), point.length); }

Ref origin(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"namespace"}};
  const auto [name] = signature.parse(call);
  return new_handle(*tree_of(self).origin(name).get(), 0);
}

Ref plant(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"root"}};
  const auto [root] = signature.parse(call);
  return Ref::taken(tree_of(self).plant(as_node(root)).release());
}

Ref uproot(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"root"}};
  const auto [root] = signature.parse(call);
  tree_of(self).uproot(as_node(root));
  return none();
}

Ref holds(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"node"}};
  const auto [node] = signature.parse(call);
  return truth(tree_of(self).holds(as_node(node)));
}

Ref locate(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"handle"}};
  const auto [object] = signature.parse(call);
  const Handle& handle = as_handle(object);
  return handle_of(tree_of(self).locate(*handle.node, handle.length));
}

Ref descend(PyObject* self, const Call& call) {
  static constexpr Signature<2> signature{{"handle", "ids"}};
  const auto [object, ids] = signature.parse(call);
  const Handle& handle = as_handle(object);
  const ArrayView view(ids);
  return handle_of(tree_of(self).descend(*handle.node, handle.length, view.ints()));
}

Ref next_ids(PyObject*, const Call& call) {
  static constexpr Signature<1> signature{{"point"}};
  const auto [object] = signature.parse(call);
  const Handle& point = as_handle(object);
  Node& node = *point.node;
  if (point.length == node.end)
    return Ref::taken(node.children == nullptr ? PyList_New(0) : PyDict_Keys(node.children));
  const Ints rest = from(node.ids(), point.length - node.start());
  if (rest.empty()) fail("%R ends above %lld", node.object(), point.length);
  return Ref::taken(Py_BuildValue("[i]", static_cast<int>(rest[0])));
}

// The roots' children, the last of them on top.
std::vector<NodeRef> tops(PyObject* roots) {
  std::vector<NodeRef> stack;
  PyObject *name, *root;
  for (Py_ssize_t at = 0; PyDict_Next(roots, &at, &name, &root) != 0;)
    for (NodeRef& child : as_node(root).children_in_order()) stack.push_back(std::move(child));
  return stack;
}

void append(const Ref& list, Node& node) { checked(PyList_Append(list.get(), node.object())); }

Ref nodes(PyObject* self, const Call& call) {
  Signature<0>{}.parse(call);
  auto work = std::make_unique<Walk>();
  PyObject *name, *root;
  for (Py_ssize_t at = 0; PyDict_Next(tree_of(self).roots, &at, &name, &root) != 0;)
    work->roots.push_back(NodeRef::of(&as_node(root)));
  Ref walker = Ref::taken(PyType_GenericAlloc(walker_type, 0));
  reinterpret_cast<Walker*>(walker.get())->work = work.release();
  return walker;
}

Ref topmost(PyObject* self, const Call& call) {
  static constexpr Signature<1> signature{{"chosen"}};
  const auto [chosen] = signature.parse(call);
  Ref found = Ref::taken(PyList_New(0));
  std::vector<NodeRef> stack = tops(tree_of(self).roots);
  while (!stack.empty()) {
    const NodeRef node = std::move(stack.back());
    stack.pop_back();
    const Ref answer =
        Ref::taken(PyObject_CallFunctionObjArgs(chosen, node.as_object(), nullptr));
    if (checked(PyObject_IsTrue(answer.get())) != 0)
      append(found, *node.get());
    else
      for (NodeRef& child : node->children_in_order()) stack.push_back(std::move(child));
  }
  return found;
}

PyMethodDef tree_methods[] = {
    method<origin>("origin"),     method<plant>("plant"),   method<uproot>("uproot"),
    method<holds>("holds"),       method<locate>("locate"), method<descend>("descend"),
    method<next_ids>("next_ids"), method<nodes>("nodes"),   method<topmost>("topmost"),
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef tree_members[] = {
    {"roots", T_OBJECT_EX, offsetof(RadixTree, roots), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot tree_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create_tree)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_tree)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_tree)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_tree)},
    {Py_tp_methods, tree_methods},
    {Py_tp_members, tree_members},
    {0, nullptr},
};
PyType_Spec tree_spec = {"espalier.radix._core.RadixTree", sizeof(RadixTree), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, tree_slots};

// -- functions ------------------------------------------------------------------------------

Ref attach_node(PyObject*, const Call& call) {
  static constexpr Signature<1> signature{{"node"}};
  const auto [node] = signature.parse(call);
  attach(as_node(node));
  return none();
}

Ref detach_leaf(PyObject*, const Call& call) {
  static constexpr Signature<1> signature{{"leaf"}};
  const auto [leaf] = signature.parse(call);
  return Ref::taken(detach(as_node(leaf)).release());
}

Ref split_node(PyObject*, const Call& call) {
  static constexpr Signature<2> signature{{"node", "length"}};
  const auto [node, length] = signature.parse(call);
  return Ref::taken(split(as_node(node), integer(length)).release());
}

Ref trim_leaf(PyObject*, const Call& call) {
  static constexpr Signature<2> signature{{"leaf", "n"}};
  const auto [leaf, num] = signature.parse(call);
  return array_of_run(trim(as_node(leaf), integer(num)).get());
}

Ref common_len_of(PyObject*, const Call& call) {
  static constexpr Signature<2> signature{{"a", "b"}};
  const auto [a, b] = signature.parse(call);
  const ArrayView one(a), other(b);
  return integer_object(static_cast<std::int64_t>(common_len(one.ints(), other.ints())));
}

}  // namespace

PyMethodDef tree_functions[] = {
    method<attach_node>("attach"),     method<detach_leaf>("detach"),
    method<split_node>("split"),       method<trim_leaf>("trim"),
    method<common_len_of>("common_len"), {nullptr, nullptr, 0, nullptr},
};

NodeRef RadixTree::registered(PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(roots, name);
  if (found != nullptr) return NodeRef::of(&as_node(found));
  if (PyErr_Occurred() != nullptr) throw Raised{};
  return {};
}

NodeRef RadixTree::origin(PyObject* name) {
  if (PyTuple_Check(name) == 0) fail_type("a namespace is a tuple, not %R", name);
  if (NodeRef root = registered(name)) return root;
  NodeRef root = new_node(run_of({}), run_of({}), nullptr, 0);
  root->name = Ref::of(name).release();
  return root;
}

NodeRef RadixTree::plant(Node& root) {
  if (!root.is_root()) fail("%R is no longer in the tree", root.object());
  if (NodeRef known = registered(root.name)) return known;
  checked(PyDict_SetItem(roots, root.name, root.object()));
  return NodeRef::of(&root);
}

void RadixTree::uproot(Node& root) {
  if (!root.is_root() || root.has_children() || root.lock_count != 0)
    fail("not an idle root: %R", root.object());
  checked(PyDict_DelItem(roots, root.name));
}

bool RadixTree::holds(Node& node) {
  Node* at = &node;
  while (at->parent != nullptr) at = at->parent;
  const NodeRef top = NodeRef::of(at);
  return top->is_root() && registered(top->name).get() == top.get();
}

Point RadixTree::locate(Node& node, long long length) {
  if (length > node.end)
    fail("%R has been trimmed above the handle's end %lld", node.object(), length);
  Node* at = &node;
  while (length <= at->start() && at->parent != nullptr) at = at->parent;
  NodeRef found = NodeRef::of(at);
  if (found->is_root())
    if (NodeRef root = registered(found->name)) found = std::move(root);
  return {std::move(found), length};
}

Point RadixTree::descend(Node& node, long long length, Ints ids) {
  Point point = locate(node, length);
  Ints run = from(point.node->ids(), point.length - point.node->start());
  while (true) {
    const std::size_t common = common_len(run, ids);
    point.length += static_cast<long long>(common);
    ids = ids.subspan(common);
    if (common < run.size() || ids.empty()) return point;
    NodeRef child = point.node->child(ids[0]);
    if (!child) return point;
    point.node = std::move(child);
    run = point.node->ids();
  }
}

void attach(Node& node) {
  const std::int32_t first = first_id(node);
  const NodeRef parent = NodeRef::of(node.parent);
  if (!parent || node.start() != parent->end)
    fail("%R does not continue its parent", node.object());
  if (const NodeRef other = parent->child(first))
    fail("%R already begins like %R", other.get(), node.object());
  parent->set_child(first, node);
}

NodeRef detach(Node& leaf) {
  NodeRef parent = NodeRef::of(leaf.parent);
  if (!parent || leaf.has_children()) fail("not a leaf: %R", leaf.object());
  parent->remove_child(first_id(leaf));
  leaf.set_parent(nullptr);
  return parent;
}

NodeRef split(Node& node, long long length) {
  const NodeRef parent = NodeRef::of(node.parent);
  const long long cut = length - node.start();
  const Ref key = Ref::of(node.key), slots = Ref::of(node.slots);
  const Ints ids = ints_of_run(key.get()), places = ints_of_run(slots.get());
  if (!parent || cut <= 0 || cut >= static_cast<long long>(ids.size()) ||
      places.size() != ids.size())
    fail("no split of %R at %lld", node.object(), length);
  const auto at = static_cast<std::size_t>(cut);
  NodeRef upper = new_node(run_of(ids.first(at)), run_of(places.first(at)), parent.get(), length);
  Ref lower_key = run_of(ids.subspan(at)), lower_slots = run_of(places.subspan(at));
  upper->step = Ref::of(node.step).release();
  upper->lock_count = node.lock_count;
  upper->lease_count = node.lease_count;
  upper->run = node.run;
  upper->last_access = node.last_access;
  upper->use_count = node.use_count;
  upper->priority = node.priority;
  upper->last_used_s = node.last_used_s;
  upper->set_child(ids[at], node);
  parent->set_child(ids[0], *upper.get());
  Py_DECREF(std::exchange(node.key, lower_key.release()));
  Py_DECREF(std::exchange(node.slots, lower_slots.release()));
  node.set_parent(upper.get());
  return upper;
}

Ref trim(Node& leaf, long long num) {
  const Ref key = Ref::of(leaf.key), slots = Ref::of(leaf.slots);
  const Ints ids = ints_of_run(key.get()), places = ints_of_run(slots.get());
  const long long keep = static_cast<long long>(ids.size()) - num;
  if (num <= 0 || keep <= 0 || leaf.has_children() || places.size() != ids.size())
    fail("no trim of %R by %lld", leaf.object(), num);
  const auto rest = static_cast<std::size_t>(keep);
  Ref kept_key = run_of(ids.first(rest)), kept_slots = run_of(places.first(rest));
  Ref dropped = run_of(places.subspan(rest));
  Py_DECREF(std::exchange(leaf.key, kept_key.release()));
  Py_DECREF(std::exchange(leaf.slots, kept_slots.release()));
  leaf.end -= num;
  return dropped;
}

Owned<RadixTree> new_tree() {
  auto tree = Owned<RadixTree>::taken(PyType_GenericAlloc(tree_type, 0));
  tree->roots = Ref::taken(PyDict_New()).release();
  return tree;
}

RadixTree& as_tree(PyObject* object) {
  if (object == nullptr || Py_TYPE(object) != tree_type) fail_type("not a RadixTree");
  if (tree_of(object).roots == nullptr) fail_type("a RadixTree that has been cleared");
  return tree_of(object);
}

void add_tree_type(PyObject* module) {
  tree_type = new_type(&tree_spec);
  walker_type = new_type(&walker_spec);
  checked(PyModule_AddType(module, tree_type));
}

}  // namespace espalier::radix
