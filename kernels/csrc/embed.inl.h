// Rows looked up: of the embedding table, and of the hidden states that are read out.
#pragma once

namespace espalier::ESPALIER_ISA {

// One row of a packed matrix in float32.
inline void unpack_row(const Matrix& matrix, std::int64_t row, float* out) {
  alignas(64) float unpacked[block_len * panel_width];
  const std::uint8_t* panel = matrix.panel(row / panel_width);
  for (std::int64_t k = 0; k < matrix.num_inputs; k += block_len) {
    const std::int64_t length = std::min(block_len, matrix.num_inputs - k);
    const float* block = unpack_block(matrix, panel, k, length, unpacked);
    for (std::int64_t i = 0; i < length; i++) out[k + i] = block[16 * i + row % panel_width];
  }
}

inline void embed(const EmbedOp& op, const Step& step, Team& team) {
  const std::int64_t width = op.matrix.num_inputs;
  team.take(step.num_tokens, team.grain(step.num_tokens), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; t++)
      unpack_row(op.matrix, step.id[static_cast<std::size_t>(t)], op.out + t * width);
  });
  team.barrier();
}

inline void select(const SelectOp& op, const Step& step, Team& team) {
  const std::int64_t count = static_cast<std::int64_t>(step.selected.size());
  team.take(count, team.grain(count), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i++)
      __builtin_memcpy(op.out + i * op.width,
                       op.in + step.selected[static_cast<std::size_t>(i)] * op.width,
                       static_cast<std::size_t>(op.width) * sizeof(float));
  });
  team.barrier();
}

}  // namespace espalier::ESPALIER_ISA
