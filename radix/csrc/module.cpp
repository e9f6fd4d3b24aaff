// The Python module `espalier.radix._core`: the types and functions of radix/tree.py,
// radix/slots.py and radix/books.py. Whatever it is called with, it raises and doesn't crash.
#include "books.h"

namespace espalier::radix {
namespace {

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", nullptr, -1, tree_functions, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace
}  // namespace espalier::radix

PyMODINIT_FUNC PyInit__core() {
  using namespace espalier::radix;
  return boundary([] {
    import_numpy();
    Ref module = Ref::taken(PyModule_Create(&definition));
    add_node_types(module.get());
    add_slot_types(module.get());
    add_tree_type(module.get());
    add_books_type(module.get());
    return module;
  });
}
