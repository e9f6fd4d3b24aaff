// The radix tree: what radix/tree.py does, and as it does it.
//
// While a walk calls no Python code it borrows nodes; where it does, it owns those that it goes
// on with. `roots` is a dictionary of Python's, from namespaces to nodes.
#pragma once

#include "node.h"

namespace espalier::radix {

struct RadixTree {
  PyObject_HEAD
  PyObject* roots;

  // The root of a namespace; for an unknown one, a root that `plant` may register.
  NodeRef origin(PyObject* name);
  NodeRef plant(Node& root);
  void uproot(Node& root);
  bool holds(Node& node);
  Point locate(Node& node, long long length);
  Point descend(Node& node, long long length, Ints ids);

 private:
  NodeRef registered(PyObject* name);
};

void attach(Node& node);
NodeRef detach(Node& leaf);
NodeRef split(Node& node, long long length);
// The slots dropped, as a run.
Ref trim(Node& leaf, long long num);

Owned<RadixTree> new_tree();
RadixTree& as_tree(PyObject* object);
void add_tree_type(PyObject* module);
extern PyMethodDef tree_functions[];

}  // namespace espalier::radix
