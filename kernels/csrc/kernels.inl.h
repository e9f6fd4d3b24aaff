// Everything that is compiled once for each instruction set; include its vector_*.h and
// doubles_*.h first.
#pragma once

#include "vector_math.h"

#include "rows.inl.h"
#include "linear.inl.h"
#include "embed.inl.h"
#include "attention.inl.h"
#include "sampling.inl.h"

namespace espalier::ESPALIER_ISA {

inline Kernels kernels(const char* name) {
  return {
      .name = name,
      .embed = embed,
      .linear = linear,
      .select = select,
      .attention = attention,
      .sampling = {.find_peak = find_peak, .sum_exp = sum_exp, .next_chunk = next_chunk},
  };
}

}  // namespace espalier::ESPALIER_ISA
