// The Python module `espalier.kernels._cpu`: addresses and sizes in, nothing else. Everything is
// checked by kernels/native.py, which alone calls it. Work runs without the interpreter's lock.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "plan.h"
#include "sampling.h"

namespace espalier {
namespace {

constexpr const char* pool_name = "espalier.kernels._cpu.pool";
constexpr const char* plan_name = "espalier.kernels._cpu.plan";

// -- arguments ------------------------------------------------------------------------------

// Reads the arguments of one call in their order. After a failure, which sets Python's error,
// values are zeros.
class Arguments {
 public:
  Arguments(PyObject* const* args, Py_ssize_t count) : args_(args), count_(count) {}

  std::int64_t integer() { return integer_of(next()); }
  bool flag() { return integer() != 0; }
  double number() {
    PyObject* item = next();
    return item == nullptr ? 0.0 : PyFloat_AsDouble(item);
  }
  template <class T>
  T* address() {
    return reinterpret_cast<T*>(static_cast<std::intptr_t>(integer()));
  }
  template <class T>
  T* capsule(const char* name) {
    PyObject* item = next();
    return item == nullptr ? nullptr : static_cast<T*>(PyCapsule_GetPointer(item, name));
  }
  std::string_view text() {
    Py_ssize_t size = 0;
    PyObject* item = next();
    const char* data = item == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(item, &size);
    return data == nullptr ? std::string_view() : std::string_view(data, size);
  }
  // A tuple of (format, address, outputs, inputs).
  std::vector<Matrix> matrices() {
    std::vector<Matrix> found;
    PyObject* list = next();
    const Py_ssize_t count = list == nullptr ? 0 : PyTuple_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) {
      PyObject* item = PyTuple_GetItem(list, i);
      found.push_back({
          .format = static_cast<Format>(part(item, 0)),
          .data = reinterpret_cast<const std::uint8_t*>(part(item, 1)),
          .num_outputs = part(item, 2),
          .num_inputs = part(item, 3),
      });
    }
    return found;
  }

  // A tuple of integers.
  std::vector<int> integers() {
    std::vector<int> found;
    PyObject* list = next();
    const Py_ssize_t count = list == nullptr ? 0 : PyTuple_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) found.push_back(static_cast<int>(part(list, i)));
    return found;
  }

  // Whether all arguments were there and of their types, and no more.
  bool done() {
    if (!PyErr_Occurred() && next_ != count_)
      PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", count_, next_);
    return !PyErr_Occurred();
  }

 private:
  PyObject* next() {
    if (next_ < count_) return args_[next_++];
    if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "only %zd arguments", count_);
    return nullptr;
  }
  static std::int64_t integer_of(PyObject* item) {
    return item == nullptr ? 0 : PyLong_AsLongLong(item);
  }
  static std::int64_t part(PyObject* tuple, Py_ssize_t index) {
    return integer_of(PyTuple_GetItem(tuple, index));
  }

  PyObject* const* args_;
  Py_ssize_t count_;
  Py_ssize_t next_ = 0;
};

// Do `work` while other Python threads run.
template <class Work>
void without_lock(const Work& work) {
  struct Released {
    PyThreadState* state = PyEval_SaveThread();
    // Where the interpreter is ending, this ends the thread by unwinding its stack.
    ~Released() noexcept(false) { PyEval_RestoreThread(state); }
  } released;
  work();
}

template <class T>
void destroy(PyObject* capsule) {
  delete static_cast<T*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
}

// -- instruction sets -----------------------------------------------------------------------

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
#if defined(ESPALIER_EMULATED_AVX512)  // by tests/emulation, on AVX2
bool has_avx512() { return has_avx2(); }
bool has_avx512vnni() { return has_avx2(); }
#else
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#endif
#endif

// Those that this processor has, the fastest first.
std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_avx512vnni()) found.push_back(&avx512vnni_kernels());
  if (has_avx512()) found.push_back(&avx512_kernels());
  if (has_avx2()) found.push_back(&avx2_kernels());
#endif
  found.push_back(&portable_kernels());
  return found;
}

const Kernels* kernels_named(std::string_view name) {
  for (const Kernels* kernels : available_kernels())
    if (kernels->name == name) return kernels;
  PyErr_SetString(PyExc_ValueError, "no such instruction set here");
  return nullptr;
}

PyObject* isas(PyObject*, PyObject*) {
  const std::vector<const Kernels*> all = available_kernels();
  PyObject* names = PyTuple_New(static_cast<Py_ssize_t>(all.size()));
  if (names == nullptr) return nullptr;
  for (std::size_t i = 0; i < all.size(); i++)
    PyTuple_SetItem(names, static_cast<Py_ssize_t>(i), PyUnicode_FromString(all[i]->name));
  return names;
}

// -- pool and plan --------------------------------------------------------------------------

// (num_threads, cpus) -> pool
PyObject* new_pool(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  const std::int64_t num_threads = arguments.integer();
  std::vector<int> cpus = arguments.integers();
  if (!arguments.done()) return nullptr;
  return PyCapsule_New(new Pool(static_cast<int>(num_threads), std::move(cpus)), pool_name,
                       destroy<Pool>);
}

// (isa, pool, ids, slots, table_stride, num_heads, num_kv_heads, head_dim) -> plan
PyObject* new_plan(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  const std::string_view isa = arguments.text();
  Pool* pool = arguments.capsule<Pool>(pool_name);
  Tables tables{};
  tables.ids = arguments.address<std::int32_t>();
  tables.slots = arguments.address<std::int32_t>();
  tables.stride = arguments.integer();
  AttentionShape shape{};
  shape.num_heads = static_cast<std::int32_t>(arguments.integer());
  shape.num_kv_heads = static_cast<std::int32_t>(arguments.integer());
  shape.head_dim = static_cast<std::int32_t>(arguments.integer());
  if (!arguments.done()) return nullptr;
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr) return nullptr;
  return PyCapsule_New(new Plan(*kernels, *pool, tables, shape), plan_name, destroy<Plan>);
}

PyObject* added(Arguments& arguments, Plan* plan, Op op, std::int64_t max_rows = 0) {
  if (!arguments.done()) return nullptr;
  plan->add(std::move(op), max_rows);
  return Py_NewRef(Py_None);
}

// (plan, (matrix,), out)
PyObject* add_embed(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  Plan* plan = arguments.capsule<Plan>(plan_name);
  const std::vector<Matrix> matrices = arguments.matrices();
  EmbedOp op{};
  op.out = arguments.address<float>();
  if (!arguments.done()) return nullptr;
  op.matrix = matrices.at(0);
  return added(arguments, plan, op);
}

// (plan, matrices, in, out, norm, bias, residual, eps, swiglu, quantized, on_selected, max_rows)
PyObject* add_linear(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  Plan* plan = arguments.capsule<Plan>(plan_name);
  LinearOp op{};
  op.matrices = arguments.matrices();
  op.in = arguments.address<float>();
  op.out = arguments.address<float>();
  op.norm = arguments.address<float>();
  op.bias = arguments.address<float>();
  op.residual = arguments.address<float>();
  op.eps = static_cast<float>(arguments.number());
  op.swiglu = arguments.flag();
  op.quantized = arguments.flag();
  op.on_selected = arguments.flag();
  const std::int64_t max_rows = arguments.integer();
  return added(arguments, plan, std::move(op), max_rows);
}

// (plan, qkv, out, num_heads, num_kv_heads, head_dim, scale, cos, sin, kv_format, k_pool, v_pool,
//  k_scales, v_scales)
PyObject* add_attention(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  Plan* plan = arguments.capsule<Plan>(plan_name);
  AttentionOp op{};
  op.qkv = arguments.address<float>();
  op.out = arguments.address<float>();
  op.num_heads = static_cast<std::int32_t>(arguments.integer());
  op.num_kv_heads = static_cast<std::int32_t>(arguments.integer());
  op.head_dim = static_cast<std::int32_t>(arguments.integer());
  op.scale = static_cast<float>(arguments.number());
  op.cos = arguments.address<float>();
  op.sin = arguments.address<float>();
  op.kv_format = static_cast<KVFormat>(arguments.integer());
  op.k_pool = arguments.address<void>();
  op.v_pool = arguments.address<void>();
  op.k_scales = arguments.address<float>();
  op.v_scales = arguments.address<float>();
  return added(arguments, plan, op);
}

// (plan, in, out, width)
PyObject* add_select(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  Plan* plan = arguments.capsule<Plan>(plan_name);
  SelectOp op{};
  op.in = arguments.address<float>();
  op.out = arguments.address<float>();
  op.width = arguments.integer();
  return added(arguments, plan, op);
}

// (plan, writes, num_words, rows, num_rows, selected, num_selected)
PyObject* run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  Plan* plan = arguments.capsule<Plan>(plan_name);
  TableWrites writes{};
  writes.words = arguments.address<const std::int32_t>();
  writes.num_words = arguments.integer();
  StepRows rows{};
  rows.rows = arguments.address<const std::int32_t[3]>();
  rows.num_rows = arguments.integer();
  Selection selection{};
  selection.tokens = arguments.address<const std::int32_t>();
  selection.num_tokens = arguments.integer();
  if (!arguments.done()) return nullptr;
  without_lock([&] { plan->run(writes, rows, selection); });
  return Py_NewRef(Py_None);
}

// (plan, selected, num_selected)
PyObject* read_out(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  Plan* plan = arguments.capsule<Plan>(plan_name);
  Selection selection{};
  selection.tokens = arguments.address<const std::int32_t>();
  selection.num_tokens = arguments.integer();
  if (!arguments.done()) return nullptr;
  without_lock([&] { plan->read_out(selection); });
  return Py_NewRef(Py_None);
}

// -- sampling -------------------------------------------------------------------------------

// (isa, pool, logits, stride, vocab_size, num_rows, rows, results, tops)
PyObject* sample_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  const std::string_view isa = arguments.text();
  Pool* pool = arguments.capsule<Pool>(pool_name);
  SampleOp op{};
  op.logits = arguments.address<const float>();
  op.stride = arguments.integer();
  op.vocab_size = arguments.integer();
  op.num_rows = arguments.integer();
  op.rows = arguments.address<const SampleRow>();
  op.results = arguments.address<SampleResult>();
  op.tops = arguments.address<TopLogprob>();
  if (!arguments.done()) return nullptr;
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr) return nullptr;
  without_lock([&] { sample(op, kernels->sampling, *pool); });
  return Py_NewRef(Py_None);
}

// (isa, pool, logits, stride, vocab_size, num_rows, targets, num_top, logprobs, tops)
PyObject* find_logprobs_of(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments arguments(args, count);
  const std::string_view isa = arguments.text();
  Pool* pool = arguments.capsule<Pool>(pool_name);
  LogprobsOp op{};
  op.logits = arguments.address<const float>();
  op.stride = arguments.integer();
  op.vocab_size = arguments.integer();
  op.num_rows = arguments.integer();
  op.targets = arguments.address<const std::int32_t>();
  op.num_top = arguments.integer();
  op.logprobs = arguments.address<double>();
  op.tops = arguments.address<TopLogprob>();
  if (!arguments.done()) return nullptr;
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr) return nullptr;
  without_lock([&] { find_logprobs(op, kernels->sampling, *pool); });
  return Py_NewRef(Py_None);
}

// -- the module -----------------------------------------------------------------------------

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

// No exception leaves a call: memory or threads may run out, or a pool be in use.
template <Function function>
PyObject* guarded(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  try {
    return function(self, args, count);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

template <Function function>
PyMethodDef method(const char* name) {
  const Function wrapped = guarded<function>;
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(wrapped)),
          METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {
    {"isas", isas, METH_NOARGS, nullptr},
    method<new_pool>("new_pool"),
    method<new_plan>("new_plan"),
    method<add_embed>("add_embed"),
    method<add_linear>("add_linear"),
    method<add_attention>("add_attention"),
    method<add_select>("add_select"),
    method<run>("run"),
    method<read_out>("read_out"),
    method<sample_rows>("sample"),
    method<find_logprobs_of>("find_logprobs"),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_cpu", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace
}  // namespace espalier

PyMODINIT_FUNC PyInit__cpu() { return PyModuleDef_Init(&espalier::definition); }
