// Eight doubles in plain C++, for any processor: what the operations mean.
#pragma once

#include <cstdint>

namespace espalier::ESPALIER_ISA {

struct F64 {
  double lane[8];
};

template <class Each>
inline F64 doubles(Each each) {
  F64 out;
  for (int i = 0; i < 8; i++) out.lane[i] = each(i);
  return out;
}

inline F64 set_f64(double x) {
  return doubles([&](int) { return x; });
}
inline F64 load_f64(const float* p) {
  return doubles([&](int i) { return static_cast<double>(p[i]); });
}
inline F64 add(const F64& a, const F64& b) {
  return doubles([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline F64 sub(const F64& a, const F64& b) {
  return doubles([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline F64 mul(const F64& a, const F64& b) {
  return doubles([&](int i) { return a.lane[i] * b.lane[i]; });
}
// Of a NaN and a number the second operand, as x86 does.
inline F64 max(const F64& a, const F64& b) {
  return doubles([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
// a * b + c, rounded once where the processor can, else twice.
inline F64 fma(const F64& a, const F64& b, const F64& c) {
  return doubles([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
// 2^(k - 1023), where k in [1, 2046] stands in the low bits of the lane.
inline F64 power_of_low_bits(const F64& a) {
  return doubles([&](int i) {
    return __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, a.lane[i]) << 52);
  });
}
// In one fixed order: halves are added to each other until one lane is left.
inline double sum(F64 a) {
  for (int n = 4; n > 0; n /= 2)
    for (int i = 0; i < n; i++) a.lane[i] += a.lane[i + n];
  return a.lane[0];
}

}  // namespace espalier::ESPALIER_ISA
