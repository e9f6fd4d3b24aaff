// Sixteen lanes in plain C++, for any processor: what the operations mean. The compiler makes
// of them what its baseline instruction set allows.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"

// Vectors of 64 bytes go in memory from function to function; all of these are inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace espalier::ESPALIER_ISA {

// GCC and clang give arithmetic on such types, in as many registers as it takes.
typedef float Floats __attribute__((vector_size(64)));
typedef std::int32_t Ints __attribute__((vector_size(64)));
typedef std::uint32_t Words __attribute__((vector_size(64)));

struct F32 {
  Floats lane;
};
// Sums that stay in registers beside what is added to them.
inline constexpr int panels_at_once = 1;
inline constexpr int quantized_rows_at_once = 4;
inline constexpr int sums_at_once = 6;

struct I32 {
  Ints lane;
};

template <class V, class Each>
inline V lanes(Each each) {
  V out;
  for (int i = 0; i < 16; i++) out.lane[i] = each(i);
  return out;
}

inline F32 zero_f32() { return {Floats{}}; }
inline F32 set_f32(float x) { return {Floats{} + x}; }
inline F32 load_f32(const float* p) {
  F32 out;
  std::memcpy(&out.lane, p, sizeof out.lane);
  return out;
}
inline void store(float* p, F32 a) { std::memcpy(p, &a.lane, sizeof a.lane); }

inline F32 add(F32 a, F32 b) { return {a.lane + b.lane}; }
inline F32 sub(F32 a, F32 b) { return {a.lane - b.lane}; }
inline F32 mul(F32 a, F32 b) { return {a.lane * b.lane}; }
inline F32 div(F32 a, F32 b) { return {a.lane / b.lane}; }
// Of a NaN and a number, max and min return the second operand, as x86 does.
inline F32 max(F32 a, F32 b) { return {a.lane > b.lane ? a.lane : b.lane}; }
inline F32 min(F32 a, F32 b) { return {a.lane < b.lane ? a.lane : b.lane}; }
// a * b + c, rounded once where the processor can, else twice.
inline F32 fma(F32 a, F32 b, F32 c) { return {a.lane * b.lane + c.lane}; }
inline F32 abs(F32 a) {
  return {__builtin_bit_cast(Floats, __builtin_bit_cast(Ints, a.lane) & 0x7FFFFFFF)};
}
// To the nearest integer, ties to even: what is added pushes the fraction out. From 2^22 on it
// would push too much, and NaN stays NaN.
inline F32 round(F32 a) {
  const Floats shifted = a.lane + 12582912.f;
  return {abs(a).lane < 4194304.f ? shifted - 12582912.f : a.lane};
}
// a * 2^n for -126 <= n <= 127.
inline F32 scale_by_power_of_two(F32 a, I32 n) {
  return {a.lane * __builtin_bit_cast(Floats, (n.lane + 127) << 23)};
}

// value, but 0 where x < limit.
inline F32 zero_below(F32 x, F32 limit, F32 value) {
  return {x.lane < limit.lane ? Floats{} : value.lane};
}

inline F32 to_f32(I32 a) { return {__builtin_convertvector(a.lane, Floats)}; }
// To the nearest integer, ties to even; any number for what does not fit.
inline I32 to_i32(F32 a) { return {__builtin_convertvector(round(a).lane, Ints)}; }

inline F32 load_f16(const std::uint16_t* p) {
  return lanes<F32>([&](int i) { return f16_to_f32(p[i]); });
}
inline F32 load_bf16(const std::uint16_t* p) {
  return lanes<F32>([&](int i) { return bf16_to_f32(p[i]); });
}
inline F32 load_i8(const std::int8_t* p) {
  return lanes<F32>([&](int i) { return static_cast<float>(p[i]); });
}

// Neighbouring columns of sixteen rows, which may lie anywhere: `column(c, i)` holds number
// first + i of each row, i < count.
template <class T>
struct Columns {
  static constexpr int count = 16 / sizeof(T);
  const T* const* rows;
  std::int64_t first;
};
template <class T>
inline Columns<T> load_columns(const T* const* rows, std::int64_t first) {
  return {rows, first};
}
template <class T>
inline F32 column(const Columns<T>& a, int i) {
  return lanes<F32>([&](int row) { return widen(a.rows[row][a.first + i]); });
}

// In one fixed order: halves are added to each other until one lane is left.
inline float sum(F32 a) {
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; i++) a.lane[i] += a.lane[i + n];
  return a.lane[0];
}
inline float largest(F32 a) {
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; i++) a.lane[i] = a.lane[i] > a.lane[i + n] ? a.lane[i] : a.lane[i + n];
  return a.lane[0];
}

inline I32 load_i32(const void* p) {
  I32 out;
  std::memcpy(&out.lane, p, sizeof out.lane);
  return out;
}
// Lanes must fit.
inline void store_i16(std::int16_t* p, I32 a) {
  for (int i = 0; i < 16; i++) p[i] = static_cast<std::int16_t>(a.lane[i]);
}
inline void store_i8(std::int8_t* p, I32 a) {
  for (int i = 0; i < 16; i++) p[i] = static_cast<std::int8_t>(a.lane[i]);
}
// Wraps around: the integers of a row that is not finite may be any.
inline std::int32_t sum(I32 a) {
  std::uint32_t total = 0;
  for (int i = 0; i < 16; i++) total += static_cast<std::uint32_t>(a.lane[i]);
  return static_cast<std::int32_t>(total);
}
inline I32 add(I32 a, I32 b) { return {a.lane + b.lane}; }
template <int bits>
inline I32 shift_right(I32 a) {
  return {__builtin_bit_cast(Ints, __builtin_bit_cast(Words, a.lane) >> bits)};
}
inline I32 low_nibble(I32 a) { return {a.lane & 15}; }

// -- integer products: exact, so any instruction set gives the same sums -------------------

// Sixteen outputs' sums over four inputs at a time, u4 weights times i8 activations. The 64
// bytes at `p` hold four neighbouring inputs of each output.
struct Nibbles {
  Ints bytes;
};
using NibbleSums = I32;
inline I32 zero_i32() { return {Ints{}}; }
inline NibbleSums zero_nibble_sums() { return zero_i32(); }
inline Nibbles low_nibbles(const std::uint8_t* p) { return {load_i32(p).lane & 0x0F0F0F0F}; }
inline Nibbles high_nibbles(const std::uint8_t* p) {
  return {(load_i32(p).lane >> 4) & 0x0F0F0F0F};
}
inline void add_products(NibbleSums& sums, Nibbles w, const std::int8_t* x) {
  for (int e = 0; e < 4; e++) sums.lane += ((w.bytes >> (8 * e)) & 255) * x[e];
}
inline I32 finish(NibbleSums sums) { return sums; }

// Sixteen outputs' sums over two inputs at a time, i8 weights times i16 activations. The 32
// bytes at `p` hold two neighbouring inputs of each output.
struct Pairs {
  Ints first, second;
};
inline Pairs load_pairs(const std::int8_t* p) {
  typedef std::int16_t Shorts __attribute__((vector_size(32)));
  Shorts both;
  std::memcpy(&both, p, sizeof both);
  const Ints wide = __builtin_convertvector(both, Ints);
  return {(wide << 24) >> 24, wide >> 8};
}
// The first and the second input of each output.
inline F32 first_of(Pairs w) { return to_f32(I32{w.first}); }
inline F32 second_of(Pairs w) { return to_f32(I32{w.second}); }
inline void add_products(I32& sums, Pairs w, const std::int16_t* x) {
  sums.lane += w.first * x[0] + w.second * x[1];
}

}  // namespace espalier::ESPALIER_ISA
