// What a recorded plan consists of: operations with the addresses of their buffers, and one
// step's rows; knows neither Python nor any instruction set.
//
// Activations are float32 matrices of one row for each token of the step, dense: the stride of
// a row is its width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool.h"
#include "sampling.h"

namespace espalier {

inline constexpr int panel_width = 16;  // outputs of a panel of packed weights
inline constexpr int group_len = 32;    // inputs that share a scale

// How weights are stored; the bytes are laid out as kernels/packing.py says.
enum class Format : std::int32_t { f32, bf16, q8, q4_0, q4_1 };

struct Matrix {
  Format format;
  const std::uint8_t* data;
  std::int64_t num_outputs, num_inputs;

  std::int64_t num_panels() const { return (num_outputs + panel_width - 1) / panel_width; }
  std::int64_t num_groups() const { return (num_inputs + group_len - 1) / group_len; }
  std::int64_t panel_nbytes() const {
    switch (format) {
      case Format::f32: return num_inputs * panel_width * 4;
      case Format::bf16: return num_inputs * panel_width * 2;
      case Format::q8: return num_groups() * 544;
      case Format::q4_0: return num_groups() * 288;
      case Format::q4_1: return num_groups() * 320;
    }
    __builtin_unreachable();
  }
  const std::uint8_t* panel(std::int64_t index) const { return data + index * panel_nbytes(); }
};

// The rows of one step, resolved to arrays. Row i computes positions [start[i], start[i] +
// length[i]) of table row table_row[i]; its new tokens are tokens [first[i], first[i] +
// length[i]) of the step. Position p of a table row r keeps its KV in slot
// slot_table[r * table_stride + p].
struct Step {
  std::int64_t num_rows = 0, num_tokens = 0;
  std::vector<std::int32_t> table_row, start, length, first;  // by row
  std::vector<std::int32_t> id, position, slot;               // by token
  std::vector<std::int32_t> selected;  // tokens of the step whose hidden states are read out
  const std::int32_t* slot_table = nullptr;
  std::int64_t table_stride = 0;

  const std::int32_t* slots_of(std::int64_t row) const {
    return slot_table + table_row[static_cast<std::size_t>(row)] * table_stride;
  }
};

// out[t] = row id[t] of the matrix.
struct EmbedOp {
  Matrix matrix;
  float* out;
};

// out = f(in) * transposed matrices side by side (+ bias) (+ residual), where f is nothing or
// RMSNorm with `norm`. With `swiglu` there are two matrices of the same number of outputs, and
// out = silu(f(in) * first) * (f(in) * second). `quantized`: matrices in quantised formats
// multiply integers: rows of 16 bits for q8, of 8 bits in groups of 32 for q4. `out` may be
// the residual itself, never `in`.
struct LinearOp {
  std::vector<Matrix> matrices;
  const float* in;
  float* out;
  const float* norm;      // or null
  const float* bias;      // or null
  const float* residual;  // or null
  float eps;
  bool swiglu, quantized;
  bool on_selected;  // one row for each selected token, else for each token

  std::int64_t num_inputs() const { return matrices[0].num_inputs; }
};

// out = causal attention of each new token to all positions of its row up to its own. `qkv`
// rows hold H query heads, K key heads and K value heads of `head_dim`; queries and keys are
// rotated by the tables cos and sin [position][head_dim / 2] here, and keys and values written to the
// pool, before any row attends. Pools are [slot][K][head_dim].
enum class KVFormat : std::int32_t { f32, bf16, i8 };

struct AttentionOp {
  const float* qkv;
  float* out;
  std::int32_t num_heads, num_kv_heads, head_dim;
  float scale;
  const float* cos;
  const float* sin;
  KVFormat kv_format;
  void* k_pool;
  void* v_pool;
  float* k_scales;  // [slot][K], for i8 only: value = scale * stored
  float* v_scales;
};

// out[i] = in[selected[i]].
struct SelectOp {
  const float* in;
  float* out;
  std::int64_t width;
};

class AttentionStep;  // attention.h

// What one instruction set provides. Every function is called by all threads of a team alike
// and ends with a barrier: what it computed is there for all.
struct Kernels {
  const char* name;
  void (*embed)(const EmbedOp&, const Step&, Team&);
  // `scratch` holds the prepared rows: see rows.h for how much it needs.
  void (*linear)(const LinearOp&, const Step&, std::uint8_t* scratch, Team&);
  void (*select)(const SelectOp&, const Step&, Team&);
  void (*attention)(const AttentionOp&, AttentionStep&, const Step&, Team&);
  SamplingKernels sampling;
};

const Kernels& portable_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512vnni_kernels();
#endif

}  // namespace espalier
