// Products of rows with packed weights. Each output is summed over the inputs in one order,
// from the first to the last, whatever the number of rows and whoever computes it: lanes hold
// outputs, threads share out panels of outputs, and a sum that is put aside between two blocks
// of inputs is put aside whole.
#pragma once

#include "products.inl.h"

namespace espalier::ESPALIER_ISA {

// -- panels ---------------------------------------------------------------------------------

// Call `work.operator()<n>()` for the number of rows n, 1 to `most`.
template <int most, class Work>
inline void for_rows(std::int64_t n, const Work& work) {
  if constexpr (most > 1)
    if (n < most) return for_rows<most - 1>(n, work);
  work.template operator()<most>();
}

// Call `work.operator()<n>(row)` for runs of n rows that cover [0, count), at most `most` and as
// even as can be: few rows at a time leave the processor waiting for its own sums.
template <int most, class Work>
inline void for_row_runs(std::int64_t count, const Work& work) {
  const std::int64_t runs = (count + most - 1) / most;
  for (std::int64_t i = 0; i < runs; i++) {
    const std::int64_t begin = count * i / runs, end = count * (i + 1) / runs;
    for_rows<most>(end - begin, [&]<int n>() { work.template operator()<n>(begin); });
  }
}

// The sums of `count` rows from `row` on with the panels of one matrix, or of two alike.
template <int num_panels>
inline void multiply_panels(const LinearOp& op, const Matrix& matrix, const Panels<num_panels>& at,
                            const PreparedRows& rows, std::int64_t row, std::int64_t count) {
  if (multiplies_i8(op, matrix)) {
    const bool has_min = matrix.format == Format::q4_1;
    for_row_runs<quantized_rows_at_once>(count, [&]<int n>(std::int64_t r) {
      multiply_q4<n>(at.from(r), has_min, matrix.num_groups(), rows, row + r);
    });
    return;
  }
  if (multiplies_i16(op, matrix)) {
    for_row_runs<quantized_rows_at_once>(count, [&]<int n>(std::int64_t r) {
      multiply_q8<n>(at.from(r), matrix.num_groups(), rows, row + r);
    });
    return;
  }
  const std::int64_t inputs = matrix.num_inputs;
  const float* x = (rows.f32 != nullptr ? rows.f32 : op.in) + row * inputs;
  if (count <= 2) {
    for (int p = 0; p < num_panels; p++)
      for_rows<2>(count, [&]<int n>() {
        multiply_few<n>(matrix, at.weights[p], x, at.sums[p]);
      });
    return;
  }
  alignas(64) float unpacked[num_panels][block_len * panel_width];
  for (std::int64_t k = 0; k < inputs; k += block_len) {
    const std::int64_t length = std::min(block_len, inputs - k);
    const float* blocks[num_panels];
    for (int p = 0; p < num_panels; p++)
      blocks[p] = unpack_block(matrix, at.weights[p], k, length, unpacked[p]);
    for_row_runs<sums_at_once>(count, [&]<int n>(std::int64_t r) {
      add_block<n>(blocks, x + r * inputs + k, inputs, length, at.from(r), k == 0);
    });
  }
}

// -- the operation --------------------------------------------------------------------------

// Puts outputs [column, column + 16) of a row away, as far as they are below `end`.
inline void write_outputs(const LinearOp& op, std::int64_t width, std::int64_t row,
                          std::int64_t column, std::int64_t end, F32 value) {
  if (op.bias != nullptr) value = add(value, load_within(op.bias, column, end));
  if (op.residual != nullptr)
    value = add(value, load_within(op.residual + row * width, column, end));
  store_within(op.out + row * width, column, end, value);
}

// Whether so many rows are worth more than one panel at a time: a few only wait for their weights,
// which are read fastest one panel after the other.
inline bool takes_many_panels(std::int64_t num_rows) { return num_rows >= 4; }

// Some panels of every row; the matrix's outputs begin at `column` of the operation's `width`.
template <int num_panels>
inline void linear_panels(const LinearOp& op, const Matrix& matrix, std::int64_t column,
                          std::int64_t width, std::int64_t index, const PreparedRows& rows,
                          std::int64_t num_rows) {
  Tile tiles[num_panels];
  Panels<num_panels> at;
  for (int p = 0; p < num_panels; p++)
    at.weights[p] = matrix.panel(index + p), at.sums[p] = tiles[p].sums;
  for (std::int64_t row = 0; row < num_rows; row += tile_rows) {
    const std::int64_t count = std::min(tile_rows, num_rows - row);
    multiply_panels(op, matrix, at, rows, row, count);
    for (int p = 0; p < num_panels; p++)
      for (std::int64_t r = 0; r < count; r++)
        write_outputs(op, width, row + r, column + (index + p) * panel_width,
                      column + matrix.num_outputs, load_f32(tiles[p].sums + 16 * r));
  }
}

inline void linear_panels(const LinearOp& op, const Matrix& matrix, std::int64_t column,
                          std::int64_t width, std::int64_t begin, std::int64_t end,
                          const PreparedRows& rows, std::int64_t num_rows) {
  std::int64_t i = begin;
  if (panels_at_once > 1 && takes_many_panels(num_rows))
    for (; i + panels_at_once <= end; i += panels_at_once)
      linear_panels<panels_at_once>(op, matrix, column, width, i, rows, num_rows);
  for (; i < end; i++) linear_panels<1>(op, matrix, column, width, i, rows, num_rows);
}

inline void swiglu_panel(const LinearOp& op, std::int64_t index, const PreparedRows& rows,
                         std::int64_t num_rows) {
  Tile gate, up;
  const Matrix &gates = op.matrices[0], &ups = op.matrices[1];
  const std::int64_t width = gates.num_outputs;
  const auto multiply = [&](std::int64_t row, std::int64_t count) {
    if constexpr (panels_at_once > 1)
      if (takes_many_panels(num_rows) && gates.format == ups.format) {
        const Panels<2> both{{gates.panel(index), ups.panel(index)}, {gate.sums, up.sums}};
        return multiply_panels(op, gates, both, rows, row, count);
      }
    multiply_panels(op, gates, Panels<1>{{gates.panel(index)}, {gate.sums}}, rows, row, count);
    multiply_panels(op, ups, Panels<1>{{ups.panel(index)}, {up.sums}}, rows, row, count);
  };
  for (std::int64_t row = 0; row < num_rows; row += tile_rows) {
    const std::int64_t count = std::min(tile_rows, num_rows - row);
    multiply(row, count);
    for (std::int64_t r = 0; r < count; r++)
      write_outputs(op, width, row + r, index * panel_width, width,
                    mul(silu(load_f32(gate.sums + 16 * r)), load_f32(up.sums + 16 * r)));
  }
}

inline void multiply_all(const LinearOp& op, const PreparedRows& rows, std::int64_t num_rows,
                         Team& team) {
  if (op.swiglu) {
    const std::int64_t panels = op.matrices[0].num_panels();
    team.take(panels, team.grain(panels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i++) swiglu_panel(op, i, rows, num_rows);
    });
    return;
  }
  std::int64_t width = 0, column = 0;
  for (const Matrix& matrix : op.matrices) width += matrix.num_outputs;
  for (const Matrix& matrix : op.matrices) {
    const std::int64_t panels = matrix.num_panels();
    team.take(panels, team.grain(panels), [&](std::int64_t begin, std::int64_t end) {
      linear_panels(op, matrix, column, width, begin, end, rows, num_rows);
    });
    column += matrix.num_outputs;
  }
}

// Rows so few that it takes less to prepare them on every thread than to wait for each other.
inline constexpr std::int64_t private_nbytes = 16 << 10;

inline void linear(const LinearOp& op, const Step& step, std::uint8_t* scratch, Team& team) {
  const std::int64_t num_rows = op.on_selected ? static_cast<std::int64_t>(step.selected.size())
                                               : step.num_tokens;
  if (num_rows == 0) return;
  alignas(64) std::uint8_t own[private_nbytes];
  PreparedRows rows = place_rows(op, num_rows, own);
  if (rows.nbytes <= private_nbytes) {
    for (std::int64_t row = 0; row < num_rows; row++) prepare_row(op, rows, row);
  } else {
    rows = place_rows(op, num_rows, scratch);
    team.take(num_rows, team.grain(num_rows), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; row++) prepare_row(op, rows, row);
    });
    team.barrier();
  }
  multiply_all(op, rows, num_rows, team);
  team.barrier();
}

}  // namespace espalier::ESPALIER_ISA
