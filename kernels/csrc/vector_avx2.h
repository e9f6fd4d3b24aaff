// Sixteen lanes on AVX2 + FMA + F16C: two registers side by side. See vector_portable.h for
// what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace espalier::ESPALIER_ISA {

struct F32 {
  __m256 lo, hi;
};
// Sums that stay in registers beside what is added to them.
inline constexpr int panels_at_once = 1;
inline constexpr int quantized_rows_at_once = 4;
inline constexpr int sums_at_once = 6;

struct I32 {
  __m256i lo, hi;
};

inline F32 zero_f32() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32 set_f32(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32 load_f32(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}

inline F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32 abs(F32 a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
inline F32 round(F32 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline F32 scale_by_power_of_two(F32 a, I32 n) {
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i lo = _mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23);
  const __m256i hi = _mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23);
  return {_mm256_mul_ps(a.lo, _mm256_castsi256_ps(lo)),
          _mm256_mul_ps(a.hi, _mm256_castsi256_ps(hi))};
}

inline F32 zero_below(F32 x, F32 limit, F32 value) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ), value.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ), value.hi)};
}

inline F32 to_f32(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I32 to_i32(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }

inline F32 load_f16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline F32 load_bf16(const std::uint16_t* p) {
  const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i hi = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lo), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(hi), 16))};
}
inline F32 load_i8(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

template <class T>
struct Columns {
  static constexpr int count = 16 / sizeof(T);
  __m256 lo[4], hi[4];  // 32 bits of rows 0 to 7 and 8 to 15: one, two or four columns
};
// 128 bits of rows 0 to 7 transposed as 32-bit words.
template <class T>
[[gnu::always_inline]] inline void transpose_eight(const T* const* rows, std::int64_t first,
                                                   __m256* out) {
  const auto load = [&](int row) {
    return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + first)));
  };
  __m256 r[4];  // rows i and i + 4
  for (int i = 0; i < 4; i++)
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(load(i)), load(i + 4), 1);
  const __m256 ab01 = _mm256_unpacklo_ps(r[0], r[1]), ab23 = _mm256_unpackhi_ps(r[0], r[1]);
  const __m256 cd01 = _mm256_unpacklo_ps(r[2], r[3]), cd23 = _mm256_unpackhi_ps(r[2], r[3]);
  out[0] = _mm256_shuffle_ps(ab01, cd01, 0x44);
  out[1] = _mm256_shuffle_ps(ab01, cd01, 0xEE);
  out[2] = _mm256_shuffle_ps(ab23, cd23, 0x44);
  out[3] = _mm256_shuffle_ps(ab23, cd23, 0xEE);
}
template <class T>
[[gnu::always_inline]] inline Columns<T> load_columns(const T* const* rows, std::int64_t first) {
  Columns<T> out;
  transpose_eight(rows, first, out.lo);
  transpose_eight(rows + 8, first, out.hi);
  return out;
}
template <class T>
[[gnu::always_inline]] inline __m256 column_of_words(__m256 words, int i) {
  const __m256i bits = _mm256_castps_si256(words);
  if constexpr (sizeof(T) == 4) return words;
  if constexpr (sizeof(T) == 2)
    return _mm256_castsi256_ps(i == 0 ? _mm256_slli_epi32(bits, 16)
                                      : _mm256_and_si256(bits, _mm256_set1_epi32(-65536)));
  if constexpr (sizeof(T) == 1)
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bits, 24 - 8 * i), 24));
}
template <class T>
[[gnu::always_inline]] inline F32 column(const Columns<T>& a, int i) {
  constexpr int per_word = 4 / sizeof(T);
  return {column_of_words<T>(a.lo[i / per_word], i % per_word),
          column_of_words<T>(a.hi[i / per_word], i % per_word)};
}

inline float sum(F32 a) {
  const __m256 x = _mm256_add_ps(a.lo, a.hi);
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
}
inline float largest(F32 a) {
  const __m256 x = _mm256_max_ps(a.lo, a.hi);
  const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
}

inline I32 load_i32(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
// Lanes must fit.
inline void store_i16(std::int16_t* p, I32 a) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
inline void store_i8(std::int8_t* p, I32 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline std::int32_t sum(I32 a) {
  const __m256i x = _mm256_add_epi32(a.lo, a.hi);
  const __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i z = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(z, _mm_shuffle_epi32(z, 0xB1)));
}
inline I32 add(I32 a, I32 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
template <int bits>
inline I32 shift_right(I32 a) {
  return {_mm256_srli_epi32(a.lo, bits), _mm256_srli_epi32(a.hi, bits)};
}
inline I32 low_nibble(I32 a) {
  const __m256i mask = _mm256_set1_epi32(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}

// GCC would gather products first and add them up later, for which there are too few registers.
inline void keep_in_registers(__m256i& a, __m256i& b) { asm volatile("" : "+x"(a), "+x"(b)); }

// -- integer products -------------------------------------------------------------------

// Sixteen outputs' sums over four inputs at a time, u4 weights times i8 activations. Lanes of
// 16 bits hold half sums: at most 8 x 2 x 15 x 127 = 30,480 in a group of 32.
struct NibbleSums {
  __m256i lo, hi;
};
struct Nibbles {
  __m256i lo, hi;
};
inline NibbleSums zero_nibble_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Nibbles low_nibbles(const std::uint8_t* p) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_and_si256(_mm256_loadu_si256(q), mask),
          _mm256_and_si256(_mm256_loadu_si256(q + 1), mask)};
}
inline Nibbles high_nibbles(const std::uint8_t* p) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256(q), 4), mask),
          _mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256(q + 1), 4), mask)};
}
inline void add_products(NibbleSums& sums, Nibbles w, const std::int8_t* x) {
  std::int32_t four;
  __builtin_memcpy(&four, x, 4);
  const __m256i inputs = _mm256_set1_epi32(four);
  sums.lo = _mm256_add_epi16(sums.lo, _mm256_maddubs_epi16(w.lo, inputs));
  sums.hi = _mm256_add_epi16(sums.hi, _mm256_maddubs_epi16(w.hi, inputs));
  keep_in_registers(sums.lo, sums.hi);
}
inline I32 finish(NibbleSums sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(sums.lo, ones), _mm256_madd_epi16(sums.hi, ones)};
}

// Sixteen outputs' sums over two inputs at a time, i8 weights times i16 activations.
struct Pairs {
  __m256i lo, hi;
};
inline I32 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Pairs load_pairs(const std::int8_t* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(q)), _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1))};
}
// The first and the second input of each output.
inline F32 first_of(Pairs w) {
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w.lo, 16), 16)),
          _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w.hi, 16), 16))};
}
inline F32 second_of(Pairs w) {
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(w.lo, 16)),
          _mm256_cvtepi32_ps(_mm256_srai_epi32(w.hi, 16))};
}
inline void add_products(I32& sums, Pairs w, const std::int16_t* x) {
  std::int32_t two;
  __builtin_memcpy(&two, x, 4);
  const __m256i inputs = _mm256_set1_epi32(two);
  sums.lo = _mm256_add_epi32(sums.lo, _mm256_madd_epi16(w.lo, inputs));
  sums.hi = _mm256_add_epi32(sums.hi, _mm256_madd_epi16(w.hi, inputs));
  keep_in_registers(sums.lo, sums.hi);
}

}  // namespace espalier::ESPALIER_ISA
