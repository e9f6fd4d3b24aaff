// Where the rows that a matrix product reads lie in memory; computes nothing.
#pragma once

#include <cstdint>

#include "ops.h"

namespace espalier {

// The rows of a linear operation made ready: in float32, or as integers with their scales.
// What no matrix of the operation reads is null.
struct PreparedRows {
  float* f32 = nullptr;         // [row][K]; null also where the input itself will do
  std::int16_t* i16 = nullptr;  // [row][K padded to whole groups]; value = scale16 * i16
  float* scale16 = nullptr;     // [row]
  std::int8_t* i8 = nullptr;    // [row][K padded to whole groups]; value = scale8 * i8
  float* scale8 = nullptr;      // [row][group]
  float* sum8 = nullptr;        // [row][group]: the sum of the group's values
  std::int64_t nbytes = 0;
};

// Rows at `memory`, which has room for `nbytes` and is aligned to 64 bytes.
PreparedRows place_rows(const LinearOp& op, std::int64_t num_rows, std::uint8_t* memory);

inline bool multiplies_i8(const LinearOp& op, const Matrix& matrix) {
  return op.quantized && (matrix.format == Format::q4_0 || matrix.format == Format::q4_1);
}
inline bool multiplies_i16(const LinearOp& op, const Matrix& matrix) {
  return op.quantized && matrix.format == Format::q8;
}

}  // namespace espalier
