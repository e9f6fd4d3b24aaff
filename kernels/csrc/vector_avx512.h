// Sixteen lanes on AVX-512 (F, BW and DQ): one register. With ESPALIER_VNNI integer products take
// one instruction. See vector_portable.h for what each operation means.
#pragma once

// GCC 12 warns of its own vectors that are left undefined on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

namespace espalier::ESPALIER_ISA {

struct F32 {
  __m512 all;
};
// Sums that stay in registers beside what is added to them.
inline constexpr int panels_at_once = 2;
inline constexpr int quantized_rows_at_once = 6;
inline constexpr int sums_at_once = 12;

struct I32 {
  __m512i all;
};

inline F32 zero_f32() { return {_mm512_setzero_ps()}; }
inline F32 set_f32(float x) { return {_mm512_set1_ps(x)}; }
inline F32 load_f32(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F32 a) { _mm512_storeu_ps(p, a.all); }

inline F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.all, b.all)}; }
inline F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.all, b.all)}; }
inline F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.all, b.all)}; }
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.all, b.all)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.all, b.all)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
inline F32 abs(F32 a) { return {_mm512_abs_ps(a.all)}; }
inline F32 round(F32 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm512_roundscale_ps(a.all, mode)};
}
inline F32 scale_by_power_of_two(F32 a, I32 n) {
  const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(n.all, _mm512_set1_epi32(127)), 23);
  return {_mm512_mul_ps(a.all, _mm512_castsi512_ps(bits))};
}

inline F32 zero_below(F32 x, F32 limit, F32 value) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.all, limit.all, _CMP_NLT_UQ), value.all)};
}

inline F32 to_f32(I32 a) { return {_mm512_cvtepi32_ps(a.all)}; }
inline I32 to_i32(F32 a) { return {_mm512_cvtps_epi32(a.all)}; }

inline F32 load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F32 load_bf16(const std::uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
inline F32 load_i8(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

template <class T>
struct Columns {
  static constexpr int count = 16 / sizeof(T);
  __m512 words[4];  // 32 bits of every row: one, two or four columns
};
// 128 bits of every row transposed as 32-bit words.
template <class T>
[[gnu::always_inline]] inline Columns<T> load_columns(const T* const* rows, std::int64_t first) {
  const auto load = [&](int row) {
    return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + first)));
  };
  __m512 r[4];  // rows i, i + 4, i + 8 and i + 12
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_insertf32x4(_mm512_castps128_ps512(load(i)), load(i + 4), 1);
    r[i] = _mm512_insertf32x4(r[i], load(i + 8), 2);
    r[i] = _mm512_insertf32x4(r[i], load(i + 12), 3);
  }
  const __m512 ab01 = _mm512_unpacklo_ps(r[0], r[1]), ab23 = _mm512_unpackhi_ps(r[0], r[1]);
  const __m512 cd01 = _mm512_unpacklo_ps(r[2], r[3]), cd23 = _mm512_unpackhi_ps(r[2], r[3]);
  return {{_mm512_shuffle_ps(ab01, cd01, 0x44), _mm512_shuffle_ps(ab01, cd01, 0xEE),
           _mm512_shuffle_ps(ab23, cd23, 0x44), _mm512_shuffle_ps(ab23, cd23, 0xEE)}};
}
template <class T>
[[gnu::always_inline]] inline F32 column(const Columns<T>& a, int i) {
  constexpr int per_word = 4 / sizeof(T), bits = 8 * sizeof(T);
  const __m512 words = a.words[i / per_word];
  if constexpr (sizeof(T) == 4) return {words};
  const __m512i top = _mm512_sllv_epi32(_mm512_castps_si512(words),
                                        _mm512_set1_epi32(32 - bits * (i % per_word + 1)));
  if constexpr (sizeof(T) == 2)
    return {_mm512_castsi512_ps(_mm512_and_si512(top, _mm512_set1_epi32(-65536)))};
  if constexpr (sizeof(T) == 1) return {_mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24))};
}

inline float sum(F32 a) {
  const __m256 x =
      _mm256_add_ps(_mm512_castps512_ps256(a.all), _mm512_extractf32x8_ps(a.all, 1));
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
}
inline float largest(F32 a) {
  const __m256 x =
      _mm256_max_ps(_mm512_castps512_ps256(a.all), _mm512_extractf32x8_ps(a.all, 1));
  const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
}

inline I32 zero_i32() { return {_mm512_setzero_si512()}; }
inline I32 load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }
// Lanes must fit.
inline void store_i16(std::int16_t* p, I32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.all));
}
inline void store_i8(std::int8_t* p, I32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.all));
}
inline std::int32_t sum(I32 a) {
  const __m256i x =
      _mm256_add_epi32(_mm512_castsi512_si256(a.all), _mm512_extracti64x4_epi64(a.all, 1));
  const __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i z = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(z, _mm_shuffle_epi32(z, 0xB1)));
}
inline I32 add(I32 a, I32 b) { return {_mm512_add_epi32(a.all, b.all)}; }
template <int bits>
inline I32 shift_right(I32 a) {
  return {_mm512_srli_epi32(a.all, bits)};
}
inline I32 low_nibble(I32 a) { return {_mm512_and_si512(a.all, _mm512_set1_epi32(15))}; }

// -- integer products -------------------------------------------------------------------

// Four inputs of 8 bits or two of 16 bits in every lane.
inline __m512i every_lane(const void* inputs) {
  std::int32_t word;
  __builtin_memcpy(&word, inputs, 4);
  return _mm512_set1_epi32(word);
}

struct Nibbles {
  __m512i all;
};
inline Nibbles low_nibbles(const std::uint8_t* p) {
  return {_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15))};
}
inline Nibbles high_nibbles(const std::uint8_t* p) {
  return {_mm512_and_si512(_mm512_srli_epi32(_mm512_loadu_si512(p), 4), _mm512_set1_epi8(15))};
}

struct Pairs {
  __m512i all;
};
inline Pairs load_pairs(const std::int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// The first and the second input of each output.
inline F32 first_of(Pairs w) {
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w.all, 16), 16))};
}
inline F32 second_of(Pairs w) { return {_mm512_cvtepi32_ps(_mm512_srai_epi32(w.all, 16))}; }

#if defined(ESPALIER_VNNI)

using NibbleSums = I32;
inline NibbleSums zero_nibble_sums() { return zero_i32(); }
inline void add_products(NibbleSums& sums, Nibbles w, const std::int8_t* x) {
  sums.all = _mm512_dpbusd_epi32(sums.all, w.all, every_lane(x));
}
inline I32 finish(NibbleSums sums) { return sums; }

inline void add_products(I32& sums, Pairs w, const std::int16_t* x) {
  sums.all = _mm512_dpwssd_epi32(sums.all, w.all, every_lane(x));
}

#else

// Lanes of 16 bits hold half sums: at most 8 x 2 x 15 x 127 = 30,480 in a group of 32.
struct NibbleSums {
  __m512i all;
};
inline NibbleSums zero_nibble_sums() { return {_mm512_setzero_si512()}; }
inline void add_products(NibbleSums& sums, Nibbles w, const std::int8_t* x) {
  sums.all = _mm512_add_epi16(sums.all, _mm512_maddubs_epi16(w.all, every_lane(x)));
}
inline I32 finish(NibbleSums sums) {
  return {_mm512_madd_epi16(sums.all, _mm512_set1_epi16(1))};
}

inline void add_products(I32& sums, Pairs w, const std::int16_t* x) {
  sums.all = _mm512_add_epi32(sums.all, _mm512_madd_epi16(w.all, every_lane(x)));
}

#endif

}  // namespace espalier::ESPALIER_ISA
