// Makes rows ready for a matrix product: normalises and quantises them. A row is treated by
// itself, in one order, so its result does not depend on the rows beside it.
#pragma once

namespace espalier::ESPALIER_ISA {

// Lanes [k, k + 16) of a row of `length`, zero past its end.
inline F32 load_within(const float* row, std::int64_t k, std::int64_t length) {
  if (k + 16 <= length) return load_f32(row + k);
  float padded[16] = {};
  for (std::int64_t i = k; i < length; i++) padded[i - k] = row[i];
  return load_f32(padded);
}

inline void store_within(float* row, std::int64_t k, std::int64_t length, F32 value) {
  if (k + 16 <= length) {
    store(row + k, value);
    return;
  }
  float padded[16];
  store(padded, value);
  for (std::int64_t i = k; i < length; i++) row[i] = padded[i - k];
}

// One input row as the product shall see it: with `norm`, x / sqrt(mean(x^2) + eps) * norm.
class InputRow {
 public:
  InputRow(const LinearOp& op, std::int64_t row)
      : x_(op.in + row * op.num_inputs()), norm_(op.norm), length_(op.num_inputs()) {
    if (norm_ == nullptr) return;
    F32 squares = zero_f32();
    for (std::int64_t k = 0; k < length_; k += 16) {
      const F32 x = load_within(x_, k, length_);
      squares = fma(x, x, squares);
    }
    const float mean = sum(squares) / static_cast<float>(length_);
    scale_ = set_f32(1.f / __builtin_sqrtf(mean + op.eps));
  }

  F32 operator[](std::int64_t k) const {
    const F32 x = load_within(x_, k, length_);
    return norm_ == nullptr ? x : mul(mul(x, scale_), load_within(norm_, k, length_));
  }

 private:
  const float* x_;
  const float* norm_;
  std::int64_t length_;
  F32 scale_ = zero_f32();
};

// NaN if a lane of `seen` is not finite, else 0: what it is added to carries the news on, as
// integers can't.
inline F32 not_finite(F32 x, F32 seen) { return fma(x, zero_f32(), seen); }

inline void quantize_i16(const InputRow& x, const PreparedRows& rows, std::int64_t row,
                         std::int64_t padded) {
  F32 peak = zero_f32(), news = zero_f32();
  for (std::int64_t k = 0; k < padded; k += 16) {
    peak = max(peak, abs(x[k]));
    news = not_finite(x[k], news);
  }
  const float scale = largest(peak) / 32767.f;
  const F32 inverse = set_f32(scale > 0.f ? 1.f / scale : 0.f);
  std::int16_t* out = rows.i16 + row * group_len;
  for (std::int64_t k = 0; k < padded; k += group_len, out += rows.num_rows * group_len) {
    store_i16(out, to_i32(mul(x[k], inverse)));
    store_i16(out + 16, to_i32(mul(x[k + 16], inverse)));
  }
  rows.scale16[row] = scale + sum(news);
}

inline void quantize_i8(const InputRow& x, const PreparedRows& rows, std::int64_t row,
                        std::int64_t padded) {
  const std::int64_t groups = padded / group_len;
  for (std::int64_t g = 0; g < groups; g++) {
    const std::int64_t at = g * rows.num_rows + row;
    const F32 a = x[g * group_len], b = x[g * group_len + 16];
    const float scale = largest(max(abs(a), abs(b))) / 127.f;
    const F32 inverse = set_f32(scale > 0.f ? 1.f / scale : 0.f);
    const I32 qa = to_i32(mul(a, inverse)), qb = to_i32(mul(b, inverse));
    store_i8(rows.i8 + at * group_len, qa);
    store_i8(rows.i8 + at * group_len + 16, qb);
    const float honest = scale + sum(not_finite(a, not_finite(b, zero_f32())));
    rows.scale8[at] = honest;
    rows.sum8[at] = honest * static_cast<float>(sum(add(qa, qb)));
  }
}

inline void prepare_row(const LinearOp& op, const PreparedRows& rows, std::int64_t row) {
  const std::int64_t inputs = op.num_inputs();
  const std::int64_t padded = op.matrices[0].num_groups() * group_len;
  const InputRow x(op, row);
  if (rows.f32 != nullptr)
    for (std::int64_t k = 0; k < inputs; k += 16)
      store_within(rows.f32 + row * inputs, k, inputs, x[k]);
  if (rows.i16 != nullptr) quantize_i16(x, rows, row, padded);
  if (rows.i8 != nullptr) quantize_i8(x, rows, row, padded);
}

}  // namespace espalier::ESPALIER_ISA
