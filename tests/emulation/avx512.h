// AVX-512 as SIMDe computes it on AVX2, to test its kernels on processors that lack it. Included
// before anything else (`make emulate`): the kernels' own headers know nothing of it. Here are
// also the functions that SIMDe 0.7.4 lacks, made of halves.
#pragma once

#define ESPALIER_EMULATED_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES

// Vectors of 64 bytes go in memory from function to function.
#pragma GCC diagnostic ignored "-Wpsabi"

#include <simde/x86/avx512.h>

#include <cstdint>

namespace espalier::emulation {

struct Floats {
  __m256 low, high;
};
struct Ints {
  __m256i low, high;
};
struct Doubles {
  __m256d low, high;
};

inline __m512 whole(Floats a) { return __builtin_bit_cast(__m512, a); }
inline __m512i whole(Ints a) { return __builtin_bit_cast(__m512i, a); }
inline __m512d whole(Doubles a) { return __builtin_bit_cast(__m512d, a); }
inline Floats halves(__m512 a) { return __builtin_bit_cast(Floats, a); }
inline Ints halves(__m512i a) { return __builtin_bit_cast(Ints, a); }

inline __m512 cvtepi32_ps(__m512i a) {
  return whole(Floats{_mm256_cvtepi32_ps(halves(a).low), _mm256_cvtepi32_ps(halves(a).high)});
}
inline __m512i cvtps_epi32(__m512 a) {
  return whole(Ints{_mm256_cvtps_epi32(halves(a).low), _mm256_cvtps_epi32(halves(a).high)});
}
inline __m512d cvtps_pd(__m256 a) {
  return whole(Doubles{_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                       _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))});
}
inline __m512 cvtph_ps(__m256i a) {
  return whole(Floats{_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                      _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))});
}
inline __m512i cvtepu16_epi32(__m256i a) {
  return whole(Ints{_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                    _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1))});
}
inline __m512i cvtepi8_epi32(__m128i a) {
  return whole(Ints{_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))});
}
inline __m512i srai_epi32(__m512i a, int bits) {
  return whole(
      Ints{_mm256_srai_epi32(halves(a).low, bits), _mm256_srai_epi32(halves(a).high, bits)});
}
inline __m256 extractf32x8_ps(__m512 a, int half) {
  return half == 0 ? halves(a).low : halves(a).high;
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
#define _mm512_extractf32x8_ps espalier::emulation::extractf32x8_ps
#define _mm512_cvtepi32_epi16 espalier::emulation::cvtepi32_epi16
#define _mm512_cvtepi32_epi8 espalier::emulation::cvtepi32_epi8
