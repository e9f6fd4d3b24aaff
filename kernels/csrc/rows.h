// Where the rows that a matrix product reads lie in memory; computes nothing.
#pragma once

#include <cstdint>

#include "ops.h"

namespace espalier {

// The rows of a linear operation made ready: in float32, or as integers with their scales. A
// group of integers lies beside the same group of the other rows, as that is how they are read.
// What no matrix of the operation reads is null.
struct PreparedRows {
  float* f32 = nullptr;         // [row][K]; null also where the input itself will do
  std::int16_t* i16 = nullptr;  // [group][row][32]; value = scale16 * i16
  float* scale16 = nullptr;     // [row]
  std::int8_t* i8 = nullptr;    // [group][row][32]; value = scale8 * i8
  float* scale8 = nullptr;      // [group][row]
  float* sum8 = nullptr;        // [group][row]: the sum of the group's values
  std::int64_t num_rows = 0;
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
