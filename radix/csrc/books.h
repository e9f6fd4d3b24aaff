// What every request and step asks of a cache: radix/books.py, in one call each.
//
// Books own the tree, the ledger of slots and the counts of locks. They know of the evictable
// leaves that a node with a ticket is one, and call `add` and `discard` of them; Python code
// evicts, in the method `_evict`.
#pragma once

#include "slots.h"
#include "tree.h"

namespace espalier::radix {

struct Books {
  PyObject_HEAD
  PyObject* tree;  // null until `__init__`
  PyObject* pool;
  PyObject* leaves;
  PyObject* unsettled;  // {step: {node}}
  PyObject* pending;    // {step: [slots]}
  PyObject* observers;
  PyObject* now;
  long long last_step;
  long long num_evictable;
  long long num_leased;
  long long num_yieldable;
  long long num_runs;
  long long clock;

  RadixTree& radix_tree() const { return as_tree(tree); }
  SlotLedger& ledger() const { return ledger_of(pool); }
  long long num_available() const { return ledger().count(SlotState::free) + num_evictable; }

  Point lock(const Handle& handle);
  void note_use(const Handle& handle, long long priority);
  void unlock(const Handle& handle);
  Point lease(const Handle& handle);
  void end_lease(const Handle& handle);
  Ref alloc(std::int64_t num);
  void release(Ints slots, PyObject* after_step);
  Point promise(const Handle& handle, Ints ids, Ints slots, PyObject* step);
  Point insert(const Handle& handle, Ints ids, Ints slots, PyObject* after_step);
  void offer(Node& node);
  void start_over(PyObject* new_leaves, long long step);

 private:
  NodeRef node_ending_at(const Point& point);
  void add_lock(Node& node, Node* above);
  Point grow(Node& parent, Ints ids, Ints slots, PyObject* step);
  void tell(PyObject* change, Node& first, Node* second);
};

void add_books_type(PyObject* module);

}  // namespace espalier::radix
