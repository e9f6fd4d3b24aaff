// Eight doubles on AVX-512: one register. See doubles_portable.h for what each operation means.
#pragma once

#include <immintrin.h>

namespace espalier::ESPALIER_ISA {

struct F64 {
  __m512d all;
};

inline F64 set_f64(double x) { return {_mm512_set1_pd(x)}; }
inline F64 load_f64(const float* p) { return {_mm512_cvtps_pd(_mm256_loadu_ps(p))}; }
inline F64 add(F64 a, F64 b) { return {_mm512_add_pd(a.all, b.all)}; }
inline F64 sub(F64 a, F64 b) { return {_mm512_sub_pd(a.all, b.all)}; }
inline F64 mul(F64 a, F64 b) { return {_mm512_mul_pd(a.all, b.all)}; }
inline F64 max(F64 a, F64 b) { return {_mm512_max_pd(a.all, b.all)}; }
inline F64 fma(F64 a, F64 b, F64 c) { return {_mm512_fmadd_pd(a.all, b.all, c.all)}; }
inline F64 power_of_low_bits(F64 a) {
  return {_mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(a.all), 52))};
}
inline double sum(F64 a) {
  const __m256d x =
      _mm256_add_pd(_mm512_castpd512_pd256(a.all), _mm512_extractf64x4_pd(a.all, 1));
  const __m128d y = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(y, _mm_unpackhi_pd(y, y)));
}

}  // namespace espalier::ESPALIER_ISA
