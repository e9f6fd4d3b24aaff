// Rotary embedding, and heads on their way into the KV pool. A head is treated by itself, so
// its bits do not depend on the tokens beside it.
#pragma once

#include <type_traits>

#include "attention.h"
#include "half.h"

namespace espalier::ESPALIER_ISA {

template <class T>
inline constexpr bool is_scaled = std::is_same_v<T, std::int8_t>;

// (lo cos - hi sin | hi cos + lo sin) * scale, where lo and hi are the halves of a head.
inline void rotate(const float* x, const float* cos, const float* sin, float scale,
                   std::int64_t dim, float* out) {
  const std::int64_t half = dim / 2;
  for (std::int64_t i = 0; i < half; i += 16) {
    const F32 lo = load_within(x, i, half), hi = load_within(x + half, i, half);
    const F32 c = load_within(cos, i, half), s = load_within(sin, i, half);
    const F32 out_lo = sub(mul(lo, c), mul(hi, s)), out_hi = add(mul(hi, c), mul(lo, s));
    store_within(out, i, half, mul(out_lo, set_f32(scale)));
    store_within(out + half, i, half, mul(out_hi, set_f32(scale)));
  }
}

inline void store_head(const float* x, std::int64_t dim, float* to, float*) {
  __builtin_memcpy(to, x, static_cast<std::size_t>(dim) * sizeof(float));
}

inline void store_head(const float* x, std::int64_t dim, std::uint16_t* to, float*) {
  for (std::int64_t i = 0; i < dim; i++) to[i] = f32_to_bf16(x[i]);
}

inline void store_head(const float* x, std::int64_t dim, std::int8_t* to, float* scale) {
  F32 peak = zero_f32(), news = zero_f32();
  for (std::int64_t i = 0; i < dim; i += 16) {
    peak = max(peak, abs(load_within(x, i, dim)));
    news = not_finite(load_within(x, i, dim), news);
  }
  *scale = largest(peak) / 127.f;
  const F32 inverse = set_f32(*scale > 0.f ? 1.f / *scale : 0.f);
  *scale += sum(news);
  for (std::int64_t i = 0; i < dim; i += 16) {
    std::int8_t lanes[16];
    store_i8(lanes, to_i32(mul(load_within(x, i, dim), inverse)));
    __builtin_memcpy(to + i, lanes, static_cast<std::size_t>(std::min<std::int64_t>(16, dim - i)));
  }
}

// Put the keys, rotated, and the values of tokens [begin, end) into their slots.
template <class T>
inline void write_kv(const AttentionOp& op, const Step& step, std::int64_t begin,
                     std::int64_t end) {
  const std::int64_t dim = op.head_dim, num_kv_heads = op.num_kv_heads;
  float rotated[max_head_dim];
  for (std::int64_t t = begin; t < end; t++) {
    const float* k = op.qkv + (t * (op.num_heads + 2 * num_kv_heads) + op.num_heads) * dim;
    const float* v = k + num_kv_heads * dim;
    const std::int64_t angles = step.position.data()[t] * (dim / 2);
    for (std::int64_t h = 0; h < num_kv_heads; h++) {
      const std::int64_t at = step.slot.data()[t] * num_kv_heads + h;
      rotate(k + h * dim, op.cos + angles, op.sin + angles, 1.f, dim, rotated);
      store_head(rotated, dim, static_cast<T*>(op.k_pool) + at * dim,
                 is_scaled<T> ? op.k_scales + at : nullptr);
      store_head(v + h * dim, dim, static_cast<T*>(op.v_pool) + at * dim,
                 is_scaled<T> ? op.v_scales + at : nullptr);
    }
  }
}

}  // namespace espalier::ESPALIER_ISA
