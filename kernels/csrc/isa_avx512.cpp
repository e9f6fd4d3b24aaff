// The kernels for x86 processors with AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(                                                                  \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#elif !defined(ESPALIER_EMULATED_AVX512)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#define ESPALIER_ISA avx512

#include "ops.h"
#include "rows.h"
#include "vector_avx512.h"
#include "doubles_avx512.h"
#include "kernels.inl.h"

namespace espalier {

const Kernels& avx512_kernels() {
  static const Kernels kernels = avx512::kernels("avx512");
  return kernels;
}

}  // namespace espalier

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
