// Eight doubles on AVX2 + FMA: two registers side by side. See doubles_portable.h for what each
// operation means.
#pragma once

#include <immintrin.h>

namespace espalier::ESPALIER_ISA {

struct F64 {
  __m256d lo, hi;
};

inline F64 set_f64(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
inline F64 load_f64(const float* p) {
  return {_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))};
}
inline F64 add(F64 a, F64 b) { return {_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)}; }
inline F64 sub(F64 a, F64 b) { return {_mm256_sub_pd(a.lo, b.lo), _mm256_sub_pd(a.hi, b.hi)}; }
inline F64 mul(F64 a, F64 b) { return {_mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi)}; }
inline F64 max(F64 a, F64 b) { return {_mm256_max_pd(a.lo, b.lo), _mm256_max_pd(a.hi, b.hi)}; }
inline F64 fma(F64 a, F64 b, F64 c) {
  return {_mm256_fmadd_pd(a.lo, b.lo, c.lo), _mm256_fmadd_pd(a.hi, b.hi, c.hi)};
}
inline F64 power_of_low_bits(F64 a) {
  return {_mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a.lo), 52)),
          _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a.hi), 52))};
}
inline double sum(F64 a) {
  const __m256d x = _mm256_add_pd(a.lo, a.hi);
  const __m128d y = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(y, _mm_unpackhi_pd(y, y)));
}

}  // namespace espalier::ESPALIER_ISA
