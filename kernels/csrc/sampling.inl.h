// The passes over a row of logits; see SamplingKernels. Sums have one order, whoever runs them.
// Include a vector_*.h and a doubles_*.h first.
#pragma once

namespace espalier::ESPALIER_ISA {

inline constexpr std::int64_t chunk_len = 64;

// -infinity becomes the lowest number, and NaN stays NaN.
inline F32 bounded_below(F32 x) { return max(set_f32(-__FLT_MAX__), x); }

inline Token find_peak(const float* logits, std::int64_t count) {
  const F32 lowest = set_f32(-__builtin_inff());
  float peak = -__builtin_inff();
  std::int64_t peak_begin = 0, begin = 0;
  F32 seen = zero_f32();  // NaN as soon as a lane is NaN or +infinity
  for (; begin + chunk_len <= count; begin += chunk_len) {
    F32 top = lowest;
    for (std::int64_t i = begin; i < begin + chunk_len; i += 16) {
      const F32 x = load_f32(logits + i);
      top = max(x, top);  // passes over a NaN
      seen = fma(bounded_below(x), zero_f32(), seen);
    }
    if (const float chunk_peak = largest(top); chunk_peak > peak) {
      peak = chunk_peak;
      peak_begin = begin;
    }
  }
  bool is_finite = sum(seen) == 0.f;
  for (; begin < count; begin++) {
    is_finite = is_finite && logits[begin] <= __FLT_MAX__;
    if (logits[begin] > peak) {
      peak = logits[begin];
      peak_begin = begin;
    }
  }
  if (!is_finite) return {-1, __builtin_nanf("")};
  while (logits[peak_begin] != peak) peak_begin++;
  return {static_cast<std::int32_t>(peak_begin), peak};
}

inline Chunk next_chunk(const float* logits, std::int64_t begin, std::int64_t count, float least) {
  for (; begin + chunk_len <= count; begin += chunk_len) {
    const float* p = logits + begin;
    const float peak = largest(max(max(load_f32(p), load_f32(p + 16)),
                                   max(load_f32(p + 32), load_f32(p + 48))));
    if (peak >= least) return {begin, begin + chunk_len, peak};
  }
  float peak = -__builtin_inff();
  for (std::int64_t i = begin; i < count; i++) peak = logits[i] > peak ? logits[i] : peak;
  if (begin < count && peak >= least) return {begin, count, peak};
  return {count, count, peak};
}

// e^x for x <= 0, to 1e-14 of the value; it never falls below 3e-308. x = n ln 2 + r with
// |r| <= ln 2 / 2, then Taylor's polynomial in r.
inline F64 exp_of_nonpositive(F64 x) {
  constexpr double coefficients[] = {1. / 3628800, 1. / 362880, 1. / 40320, 1. / 5040,
                                     1. / 720,     1. / 120,    1. / 24,    1. / 6,
                                     1. / 2,       1.,          1.};
  const F64 magic = set_f64(0x1.8p52 + 1023);  // added, it leaves n + 1023 in the low bits
  x = max(x, set_f64(-708.));
  const F64 shifted = fma(x, set_f64(0x1.71547652b82fep+0), magic);
  const F64 n = sub(shifted, magic);
  F64 r = fma(n, set_f64(-0x1.62e42feep-1), x);
  r = fma(n, set_f64(-0x1.a39ef35793c76p-33), r);
  F64 p = set_f64(1. / 39916800);
  for (const double coefficient : coefficients) p = fma(p, r, set_f64(coefficient));
  return mul(p, power_of_low_bits(shifted));
}

inline double sum_exp(const float* logits, std::int64_t count, double shift, double scale) {
  const F64 shifts = set_f64(shift), scales = set_f64(scale);
  F64 sums = set_f64(0.);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    sums = add(sums, exp_of_nonpositive(mul(sub(load_f64(logits + i), shifts), scales)));
  if (i < count) {
    float rest[8];
    for (int lane = 0; lane < 8; lane++)
      rest[lane] = i + lane < count ? logits[i + lane] : -__builtin_inff();
    sums = add(sums, exp_of_nonpositive(mul(sub(load_f64(rest), shifts), scales)));
  }
  return sum(sums);
}

}  // namespace espalier::ESPALIER_ISA
