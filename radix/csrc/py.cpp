#include "py.h"

#include <algorithm>
#include <cstdarg>
#include <cstring>

namespace espalier::radix {

Names names;

namespace {

struct Numpy {
  PyObject* empty;
  PyObject* frombuffer;
  PyObject* int32;
  PyObject* nothing;  // an array of no elements
} numpy;

bool is_int32(const Py_buffer& view) {
  const char* format = view.format;
  return view.itemsize == sizeof(std::int32_t) && format != nullptr &&
         (format[0] == 'i' || format[0] == 'l') && format[1] == '\0';
}

Ref attribute(PyObject* object, const char* name) {
  return Ref::taken(PyObject_GetAttrString(object, name));
}

}  // namespace

void fail(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  PyErr_FormatV(PyExc_AssertionError, format, values);
  va_end(values);
  throw Raised{};
}

void fail_type(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  PyErr_FormatV(PyExc_TypeError, format, values);
  va_end(values);
  throw Raised{};
}

ArrayView::ArrayView(PyObject* array) {
  checked(PyObject_GetBuffer(array, &view_, PyBUF_STRIDES | PyBUF_FORMAT));
  if (view_.ndim != 1 || !is_int32(view_)) {
    PyBuffer_Release(&view_);
    fail_type("an int32 array of one dimension, not %R", array);
  }
  const auto num = static_cast<std::size_t>(view_.shape[0]);
  if (num == 0) return;
  const Py_ssize_t stride = view_.strides[0];
  if (stride == sizeof(std::int32_t)) {
    ints_ = {static_cast<const std::int32_t*>(view_.buf), num};
    return;
  }
  try {
    packed_.resize(num);
  } catch (...) {
    PyBuffer_Release(&view_);
    throw;
  }
  const auto* at = static_cast<const char*>(view_.buf);
  for (std::size_t i = 0; i < num; i++, at += stride)
    std::memcpy(&packed_[i], at, sizeof(std::int32_t));
  ints_ = packed_;
}

Ref new_array(Ints values) {
  if (values.empty()) return Ref::of(numpy.nothing);
  const Ref num = integer_object(static_cast<std::int64_t>(values.size()));
  Ref array = Ref::taken(
      PyObject_CallFunctionObjArgs(numpy.empty, num.get(), numpy.int32, nullptr));
  Py_buffer view;
  checked(PyObject_GetBuffer(array.get(), &view, PyBUF_WRITABLE));
  std::memcpy(view.buf, values.data(), values.size_bytes());
  PyBuffer_Release(&view);
  return array;
}

Ref run_of(Ints values) {
  return Ref::taken(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()),
                                              static_cast<Py_ssize_t>(values.size_bytes())));
}

Ref array_of_run(PyObject* run) {
  if (PyBytes_Size(run) == 0) return Ref::of(numpy.nothing);
  return Ref::taken(PyObject_CallFunctionObjArgs(numpy.frombuffer, run, numpy.int32, nullptr));
}

std::size_t common_len(Ints a, Ints b) {
  constexpr std::size_t block = 64;  // memcmp is fast, but doesn't say where they differ
  const std::size_t num = std::min(a.size(), b.size());
  std::size_t i = 0;
  while (num - i >= block &&
         std::memcmp(&a[i], &b[i], block * sizeof(std::int32_t)) == 0)
    i += block;
  while (i < num && a[i] == b[i]) i++;
  return i;
}

void fill_arguments(const Call& call, std::span<const char* const> known, std::size_t required,
                    std::size_t positional, PyObject** found) {
  const auto count = static_cast<std::size_t>(call.count);
  if (count > positional) fail_type("%zu arguments by position, not %zu", positional, count);
  std::copy_n(call.args, count, found);
  const Py_ssize_t num_named = call.keywords == nullptr ? 0 : PyTuple_Size(call.keywords);
  for (Py_ssize_t k = 0; k < num_named; k++) {
    PyObject* name = PyTuple_GetItem(call.keywords, k);
    const auto at = std::find_if(known.begin(), known.end(), [&](const char* other) {
      return PyUnicode_CompareWithASCIIString(name, other) == 0;
    });
    if (at == known.end()) fail_type("no parameter is called %R", name);
    PyObject*& place = found[at - known.begin()];
    if (place != nullptr) fail_type("%R is given twice", name);
    place = call.args[call.count + k];
  }
  for (std::size_t i = 0; i < required; i++)
    if (found[i] == nullptr) fail_type("%s is missing", known[i]);
}

Ref call_method(PyObject* object, PyObject* name, PyObject* first, PyObject* second) {
  return Ref::taken(PyObject_CallMethodObjArgs(object, name, first, second, nullptr));
}

void import_numpy() {
  const Ref module = Ref::taken(PyImport_ImportModule("numpy"));
  numpy.empty = attribute(module.get(), "empty").release();
  numpy.frombuffer = attribute(module.get(), "frombuffer").release();
  const Ref make_dtype = attribute(module.get(), "dtype");
  numpy.int32 =
      Ref::taken(PyObject_CallFunction(make_dtype.get(), "s", "int32")).release();
  numpy.nothing =
      Ref::taken(PyObject_CallFunction(numpy.empty, "iO", 0, numpy.int32)).release();
  for (auto [place, text] : {std::pair{&names.add, "add"},
                             {&names.attached, "attached"},
                             {&names.discard, "discard"},
                             {&names.evict, "_evict"},
                             {&names.split, "split"}})
    *place = Ref::taken(PyUnicode_InternFromString(text)).release();
}

PyTypeObject* new_type(PyType_Spec* spec) {
  return reinterpret_cast<PyTypeObject*>(Ref::taken(PyType_FromSpec(spec)).release());
}

}  // namespace espalier::radix
