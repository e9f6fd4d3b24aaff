// Functions of sixteen lanes, the same for every instruction set; include a vector_*.h first.
#pragma once

namespace espalier::ESPALIER_ISA {

inline constexpr float lowest_exponent = -87.33654f;  // of e, for a result that is normal

// x = n ln 2 + r with |r| <= ln 2 / 2: e^x = fraction * 2^n. Cephes' expf (S. L. Moshier).
struct Power {
  F32 n, fraction;
};
[[gnu::always_inline]] inline Power power_of_e(F32 x) {
  const F32 n = round(mul(x, set_f32(1.44269504088896341f)));
  F32 r = fma(n, set_f32(-0.693359375f), x);
  r = fma(n, set_f32(2.12194440e-4f), r);
  F32 p = set_f32(1.9875691500e-4f);
  p = fma(p, r, set_f32(1.3981999507e-3f));
  p = fma(p, r, set_f32(8.3334519073e-3f));
  p = fma(p, r, set_f32(4.1665795894e-2f));
  p = fma(p, r, set_f32(1.6666665459e-1f));
  p = fma(p, r, set_f32(5.0000001201e-1f));
  return {n, fma(p, mul(r, r), add(r, set_f32(1.f)))};
}

// e^x within 2 units in the last place for x >= -87; 0 for what is smaller, infinity above 88.7.
// NaN stays NaN: max and min return their second operand then.
[[gnu::always_inline]] inline F32 exp(F32 x) {
  const F32 lowest = set_f32(lowest_exponent);
  const Power power = power_of_e(min(set_f32(88.72283f), max(lowest, x)));
  // 2^n in two steps: n may be 128, and 2^128 is no float.
  const F32 half = round(mul(power.n, set_f32(0.5f)));
  const F32 value = scale_by_power_of_two(
      scale_by_power_of_two(power.fraction, to_i32(half)), to_i32(sub(power.n, half)));
  return zero_below(x, lowest, value);
}

// The same for x <= 0, in fewer steps.
[[gnu::always_inline]] inline F32 exp_below_zero(F32 x) {
  const F32 lowest = set_f32(lowest_exponent);
  const Power power = power_of_e(max(lowest, x));
  return zero_below(x, lowest, scale_by_power_of_two(power.fraction, to_i32(power.n)));
}

inline F32 silu(F32 x) {
  return div(x, add(set_f32(1.f), exp(sub(zero_f32(), x))));
}

}  // namespace espalier::ESPALIER_ISA
