// `Node` and `Handle`, as Python sees them: radix/tree.py says what their attributes mean.
//
// A node owns its parent and its children, as in Python; who makes such circles leaves them to
// Python's collector, but `detach` breaks them. `parent` is a node or null, `children` is null
// until there is a first child or somebody asks, and whatever Python code puts into that
// dictionary is looked at with suspicion. `key` and `slots` are never null, and always whole
// numbers of int32; they may differ in length only if Python code made it so.
#pragma once

#include "py.h"

namespace espalier::radix {

struct Node {
  PyObject_HEAD
  PyObject* key;
  PyObject* slots;
  Node* parent;
  PyObject* children;
  PyObject* step;     // an int, or none
  PyObject* name;     // of a root: a tuple; else none
  PyObject* ticket;   // an int, or none
  long long end;
  long long lock_count;
  long long lease_count;
  long long run;
  long long last_access;
  long long use_count;
  long long priority;
  double last_used_s;

  PyObject* object() { return reinterpret_cast<PyObject*>(this); }
  Ints ids() const { return ints_of_run(key); }
  long long num_tokens() const { return PyBytes_Size(key) / Py_ssize_t{sizeof(std::int32_t)}; }
  long long start() const { return end - num_tokens(); }
  bool is_root() const { return !is_none(name); }
  bool has_children() const { return children != nullptr && PyDict_Size(children) > 0; }

  // The child whose key begins with `id`, if there is one.
  Owned<Node> child(std::int32_t id);
  void set_child(std::int32_t id, Node& child);
  void remove_child(std::int32_t id);
  std::vector<Owned<Node>> children_in_order();
  void set_parent(Node* node);
};
using NodeRef = Owned<Node>;

struct Handle {
  PyObject_HEAD
  Node* node;
  long long length;
};

// A place in the tree, as `Handle`.
struct Point {
  NodeRef node;
  long long length;
};

NodeRef new_node(Ref key, Ref slots, Node* parent, long long end);
Ref new_handle(Node& node, long long length);
Node& as_node(PyObject* object);      // borrowed; TypeError if it is something else
Handle& as_handle(PyObject* object);  // the same

// Makes the types and adds them to the module.
void add_node_types(PyObject* module);

}  // namespace espalier::radix
