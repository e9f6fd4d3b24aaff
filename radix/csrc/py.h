// What the core needs of Python: owned references, errors, arguments and int32 arrays.
//
// Inside, an error is Python's error set and `Raised` thrown; `guarded` stands at the boundary,
// which no exception crosses. Python's lock is held all the time: no call lasts long.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace espalier::radix {

struct Raised {};

// Throws with Python's AssertionError set; the format is PyUnicode_FromFormat's.
[[noreturn]] void fail(const char* format, ...);
[[noreturn]] void fail_type(const char* format, ...);

// An owned reference, or none.
template <class T>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned(const Owned& other) : object_(other.object_) { Py_XINCREF(as_object()); }
  Owned& operator=(Owned other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() { Py_XDECREF(as_object()); }

  // Takes over a new reference; null is an error that Python has set.
  static Owned taken(PyObject* object) {
    if (object == nullptr) throw Raised{};
    return Owned(reinterpret_cast<T*>(object));
  }
  static Owned of(T* borrowed) {
    Py_XINCREF(reinterpret_cast<PyObject*>(borrowed));
    return Owned(borrowed);
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* as_object() const { return reinterpret_cast<PyObject*>(object_); }
  PyObject* release() { return reinterpret_cast<PyObject*>(std::exchange(object_, nullptr)); }

 private:
  explicit Owned(T* object) : object_(object) {}
  T* object_ = nullptr;
};
using Ref = Owned<PyObject>;

inline Ref none() { return Ref::of(Py_None); }
inline Ref truth(bool value) { return Ref::of(value ? Py_True : Py_False); }
inline bool is_none(PyObject* object) { return object == nullptr || object == Py_None; }
inline int checked(int status) {
  if (status < 0) throw Raised{};
  return status;
}
inline std::int64_t integer(PyObject* object) {
  const std::int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) throw Raised{};
  return value;
}
inline Ref integer_object(std::int64_t value) { return Ref::taken(PyLong_FromLongLong(value)); }
inline double number(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred() != nullptr) throw Raised{};
  return value;
}

// Memory from Python, so that its tracemalloc counts it.
template <class T>
struct Allocator {
  using value_type = T;
  T* allocate(std::size_t num) {
    void* memory = PyMem_Malloc(num * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc{};
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { PyMem_Free(memory); }
  bool operator==(const Allocator&) const { return true; }
};
template <class T>
using Vector = std::vector<T, Allocator<T>>;

// -- arrays ---------------------------------------------------------------------------------

using Ints = std::span<const std::int32_t>;

// The contents of a one-dimensional int32 array, which stays as it is while this lives.
class ArrayView {
 public:
  explicit ArrayView(PyObject* array);
  ~ArrayView() { PyBuffer_Release(&view_); }
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;
  Ints ints() const { return ints_; }

 private:
  Py_buffer view_;
  Vector<std::int32_t> packed_;  // of an array with gaps
  Ints ints_;
};

Ref new_array(Ints values);

// Runs are kept as Python's bytes: they can't change, and arrays can show them without a copy.
Ref run_of(Ints values);
Ref array_of_run(PyObject* run);
inline Ints ints_of_run(PyObject* run) {
  return {reinterpret_cast<const std::int32_t*>(PyBytes_AsString(run)),
          static_cast<std::size_t>(PyBytes_Size(run)) / sizeof(std::int32_t)};
}

std::size_t common_len(Ints a, Ints b);

// -- calls ----------------------------------------------------------------------------------

struct Call {
  PyObject* const* args;
  Py_ssize_t count;
  PyObject* keywords;  // a tuple of names, or null
};

void fill_arguments(const Call& call, std::span<const char* const> known, std::size_t required,
                    std::size_t positional, PyObject** found);

// The parameters of a function: the first `required` must be given, those from `positional` on
// can only be given by name.
template <std::size_t N>
struct Signature {
  std::array<const char*, N> names;
  std::size_t required = N;
  std::size_t positional = N;

  // The arguments in the order of the parameters, null for those that are left out.
  std::array<PyObject*, N> parse(const Call& call) const {
    std::array<PyObject*, N> found{};
    fill_arguments(call, names, required, positional, found.data());
    return found;
  }
};

// Does `work`, which returns a Ref; what it throws becomes null, with Python's error set.
template <class Work>
PyObject* boundary(const Work& work) noexcept {
  try {
    return work().release();
  } catch (const Raised&) {
    return nullptr;
  } catch (const std::exception& error) {  // there is no memory, or could be none
    PyErr_SetString(PyExc_MemoryError, error.what());
    return nullptr;
  }
}

template <auto function>
PyObject* guarded(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return boundary([&] { return function(self, Call{args, count, keywords}); });
}

template <auto function>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guarded<function>)),
          METH_FASTCALL | METH_KEYWORDS, nullptr};
}

template <auto function>
PyObject* guarded_getter(PyObject* self, void*) {
  return boundary([&] { return function(self); });
}

template <auto function>
int guarded_setter(PyObject* self, PyObject* value, void*) {
  PyObject* done = boundary([&] {
    if (value == nullptr) fail_type("this attribute can't be deleted");
    function(self, value);
    return none();
  });
  Py_XDECREF(done);
  return done == nullptr ? -1 : 0;
}

// A number of an object as an attribute. It stays as it is where it is given something else:
// Python's own T_LONGLONG would leave -1 behind.
template <class T, long long T::*field>
Ref get_integer(PyObject* self) {
  return integer_object(reinterpret_cast<T*>(self)->*field);
}
template <class T, long long T::*field>
void set_integer(PyObject* self, PyObject* value) {
  reinterpret_cast<T*>(self)->*field = integer(value);
}
template <class T, long long T::*field>
PyGetSetDef integer_attribute(const char* name) {
  return {name, guarded_getter<get_integer<T, field>>, guarded_setter<set_integer<T, field>>,
          nullptr, nullptr};
}

Ref call_method(PyObject* object, PyObject* name, PyObject* first, PyObject* second = nullptr);

// -- what is looked up once ------------------------------------------------------------------

// Filled when the module is imported.
struct Names {
  PyObject *add, *attached, *discard, *evict, *split;
};
extern Names names;
void import_numpy();
PyTypeObject* new_type(PyType_Spec* spec);

}  // namespace espalier::radix
