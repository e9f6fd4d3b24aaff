// 16-bit floats, bit for bit; knows no vectors.
#pragma once

#include <cstdint>

namespace espalier {

inline float bf16_to_f32(std::uint16_t x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16);
}

// To nearest even; a NaN stays a NaN.
inline std::uint16_t f32_to_bf16(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float f16_to_f32(std::uint16_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000) << 16;
  const std::uint32_t magnitude = x & 0x7FFF;
  if (magnitude >= 0x7C00)  // infinity, NaN
    return __builtin_bit_cast(float, sign | 0x7F800000 | magnitude << 13);
  if (magnitude < 0x0400) {  // subnormal: magnitude * 2^-24, exact
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  return __builtin_bit_cast(float, sign | ((magnitude << 13) + (112u << 23)));
}

// A number as it is stored, bf16 for 16 bits, in float32: exact.
inline float widen(float x) { return x; }
inline float widen(std::uint16_t x) { return bf16_to_f32(x); }
inline float widen(std::int8_t x) { return x; }

}  // namespace espalier
