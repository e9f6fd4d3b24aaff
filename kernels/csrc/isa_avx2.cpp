// The kernels for x86 processors with AVX2, FMA and F16C.
#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#define ESPALIER_ISA avx2

#include "ops.h"
#include "rows.h"
#include "vector_avx2.h"
#include "doubles_avx2.h"
#include "kernels.inl.h"

namespace espalier {

const Kernels& avx2_kernels() {
  static const Kernels kernels = avx2::kernels("avx2");
  return kernels;
}

}  // namespace espalier

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
