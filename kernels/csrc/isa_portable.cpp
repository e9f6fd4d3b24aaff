// The kernels for any processor.
#pragma GCC optimize("O2")  // O3 takes thrice as long to compile, for a path that is seldom taken
#define ESPALIER_ISA portable

#include "ops.h"
#include "rows.h"
#include "vector_portable.h"
#include "doubles_portable.h"
#include "kernels.inl.h"

namespace espalier {

const Kernels& portable_kernels() {
  static const Kernels kernels = portable::kernels("portable");
  return kernels;
}

}  // namespace espalier
