// AVX-512 as SIMDe computes it on AVX2, to test its kernels on processors that lack it. Included
// before anything else (`make emulate`): the kernels' own headers know nothing of it. Here are
// also the functions that SIMDe 0.7.4 lacks, made of halves.
#pragma once

#define ESPALIER_EMULATED_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES

#include <simde/x86/avx512.h>

#include <cstdint>

namespace espalier::emulation {

inline __m256 half(__m512 a, int i) { return simde__m512_to_private(a).m256[i]; }
inline __m256i half(__m512i a, int i) { return simde__m512i_to_private(a).m256i[i]; }

inline __m512 whole(__m256 low, __m256 high) {
  simde__m512_private out;
  out.m256[0] = low;
  out.m256[1] = high;
  return simde__m512_from_private(out);
}
inline __m512i whole(__m256i low, __m256i high) {
  simde__m512i_private out;
  out.m256i[0] = low;
  out.m256i[1] = high;
  return simde__m512i_from_private(out);
}
inline __m512d whole(__m256d low, __m256d high) {
  simde__m512d_private out;
  out.m256d[0] = low;
  out.m256d[1] = high;
  return simde__m512d_from_private(out);
}

inline __m512 cvtepi32_ps(__m512i a) {
  return whole(_mm256_cvtepi32_ps(half(a, 0)), _mm256_cvtepi32_ps(half(a, 1)));
}
inline __m512i cvtps_epi32(__m512 a) {
  return whole(_mm256_cvtps_epi32(half(a, 0)), _mm256_cvtps_epi32(half(a, 1)));
}
inline __m512d cvtps_pd(__m256 a) {
  return whole(_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
               _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
}
inline __m512 cvtph_ps(__m256i a) {
  return whole(_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
               _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}
inline __m512i cvtepu16_epi32(__m256i a) {
  return whole(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
               _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)));
}
inline __m512i cvtepi8_epi32(__m128i a) {
  return whole(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)));
}
inline __m512i srai_epi32(__m512i a, int bits) {
  return whole(_mm256_srai_epi32(half(a, 0), bits), _mm256_srai_epi32(half(a, 1), bits));
}

// The low bits of each lane: the processor's instruction does not saturate.
inline __m256i cvtepi32_epi16(__m512i a) {
  std::int32_t lanes[16];
  std::int16_t narrow[16];
  __builtin_memcpy(lanes, &a, sizeof lanes);
  for (int i = 0; i < 16; i++) narrow[i] = static_cast<std::int16_t>(lanes[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(narrow));
}
inline __m128i cvtepi32_epi8(__m512i a) {
  std::int32_t lanes[16];
  std::int8_t narrow[16];
  __builtin_memcpy(lanes, &a, sizeof lanes);
  for (int i = 0; i < 16; i++) narrow[i] = static_cast<std::int8_t>(lanes[i]);
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(narrow));
}

}  // namespace espalier::emulation

// The compiler's own functions of these names need the processor's instructions.
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtps_pd
#undef _mm512_cvtph_ps
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_srai_epi32
#undef _mm512_extractf32x8_ps
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_ps espalier::emulation::cvtepi32_ps
#define _mm512_cvtps_epi32 espalier::emulation::cvtps_epi32
#define _mm512_cvtps_pd espalier::emulation::cvtps_pd
#define _mm512_cvtph_ps espalier::emulation::cvtph_ps
#define _mm512_cvtepu16_epi32 espalier::emulation::cvtepu16_epi32
#define _mm512_cvtepi8_epi32 espalier::emulation::cvtepi8_epi32
#define _mm512_srai_epi32 espalier::emulation::srai_epi32
#define _mm512_extractf32x8_ps espalier::emulation::half
#define _mm512_cvtepi32_epi16 espalier::emulation::cvtepi32_epi16
#define _mm512_cvtepi32_epi8 espalier::emulation::cvtepi32_epi8

// This alias wants two arguments too many.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 simde_mm512_madd_epi16
