// Products of a few rows with panels of packed weights, in registers: the inner loops of
// linear.inl.h. A panel is sixteen outputs, one in each lane, summed over the inputs from the
// first to the last.
#pragma once

namespace espalier::ESPALIER_ISA {

inline constexpr std::int64_t tile_rows = 128;   // rows whose sums of one panel lie on the stack
inline constexpr std::int64_t block_len = 256;  // inputs of a panel that fit the L1 cache

// Arrays of sums stay in registers only if the loops over them are unrolled early, and if the
// products are functions of their own: where GCC inlines them it runs out of registers.
#define ESPALIER_UNROLL _Pragma("GCC unroll 12")

// Weights are read once a step, in order, but the processor's own prefetcher is too timid: ask
// for what comes this much later. Past the end of a matrix it does no harm.
inline constexpr std::int64_t prefetch_nbytes = 4096;

inline void prefetch_weights(const void* now) {
  __builtin_prefetch(static_cast<const std::uint8_t*>(now) + prefetch_nbytes);
}

// Sums of one panel: [row][16].
struct alignas(64) Tile {
  float sums[tile_rows * panel_width];
};

// Panels of one format that are multiplied together, and where their sums go: what is loaded of
// a row serves all of them.
template <int num_panels>
struct Panels {
  const std::uint8_t* weights[num_panels];
  float* sums[num_panels];

  Panels from(std::int64_t row) const {
    Panels at = *this;
    for (float*& to : at.sums) to += 16 * row;
    return at;
  }
};

// -- float32 ------------------------------------------------------------------------------

// The nibbles of sixteen outputs' 32-bit words at bit `shift`, as weights: d * q is rounded,
// then + m, as in a dequantised file.
template <int shift>
inline F32 nibble_weights(I32 words, F32 d, F32 m) {
  return add(mul(d, to_f32(low_nibble(shift_right<shift>(words)))), m);
}

template <bool has_min, class Visit>
[[gnu::always_inline]] inline void for_each_nibble(const std::uint8_t* panel, std::int64_t begin, std::int64_t length,
                            const Visit& visit) {
  constexpr std::int64_t stride = has_min ? 320 : 288;
  for (std::int64_t k = 0; k < length; k += group_len) {
    const std::uint8_t* group = panel + (begin + k) / group_len * stride;
    const std::uint16_t* halves = reinterpret_cast<const std::uint16_t*>(group);
    const F32 d = load_f16(halves);
    const F32 m = has_min ? load_f16(halves + 16) : mul(d, set_f32(-8.f));
    const std::uint8_t* nibbles = group + (has_min ? 64 : 32);
    for (int j = 0; j < 4; j++) {
      const I32 words = load_i32(nibbles + 64 * j);
      visit(k + 4 * j, nibble_weights<0>(words, d, m));
      visit(k + 4 * j + 1, nibble_weights<8>(words, d, m));
      visit(k + 4 * j + 2, nibble_weights<16>(words, d, m));
      visit(k + 4 * j + 3, nibble_weights<24>(words, d, m));
    }
    for (int j = 0; j < 4; j++) {
      const I32 words = load_i32(nibbles + 64 * j);
      visit(k + 16 + 4 * j, nibble_weights<4>(words, d, m));
      visit(k + 16 + 4 * j + 1, nibble_weights<12>(words, d, m));
      visit(k + 16 + 4 * j + 2, nibble_weights<20>(words, d, m));
      visit(k + 16 + 4 * j + 3, nibble_weights<28>(words, d, m));
    }
  }
}

// Call `visit(k, weights)` for the inputs k = 0 .. length - 1 of a panel from `begin` on, in this
// order, with the sixteen outputs' weights as float32: exactly the values that are stored.
// `begin` and, but at the end of the row, `length` are multiples of a group.
template <class Visit>
[[gnu::always_inline]] inline void for_each_input(const Matrix& matrix, const std::uint8_t* panel, std::int64_t begin,
                           std::int64_t length, const Visit& visit) {
  switch (matrix.format) {
    case Format::f32:
      for (std::int64_t k = 0; k < length; k++) {
        const float* weights = reinterpret_cast<const float*>(panel) + 16 * (begin + k);
        prefetch_weights(weights);
        visit(k, load_f32(weights));
      }
      return;
    case Format::bf16:
      for (std::int64_t k = 0; k < length; k++) {
        const std::uint16_t* weights =
            reinterpret_cast<const std::uint16_t*>(panel) + 16 * (begin + k);
        if (k % 2 == 0) prefetch_weights(weights);
        visit(k, load_bf16(weights));
      }
      return;
    case Format::q8:
      for (std::int64_t k = 0; k < length; k += group_len) {
        const std::uint8_t* group = panel + (begin + k) / group_len * 544;
        const F32 d = load_f16(reinterpret_cast<const std::uint16_t*>(group));
        for (int j = 0; j < 16; j++) {
          if (j % 2 == 0) prefetch_weights(group + 32 + 32 * j);
          const Pairs pairs = load_pairs(reinterpret_cast<const std::int8_t*>(group + 32 + 32 * j));
          visit(k + 2 * j, mul(d, first_of(pairs)));
          visit(k + 2 * j + 1, mul(d, second_of(pairs)));
        }
      }
      return;
    case Format::q4_0:
      return for_each_nibble<false>(panel, begin, length, visit);
    case Format::q4_1:
      return for_each_nibble<true>(panel, begin, length, visit);
  }
}

// The same inputs as float32 in memory, [input][16].
inline const float* unpack_block(const Matrix& matrix, const std::uint8_t* panel,
                                 std::int64_t begin, std::int64_t length, float* out) {
  if (matrix.format == Format::f32) return reinterpret_cast<const float*>(panel) + 16 * begin;
  for_each_input(matrix, panel, begin, length,
                 [&](std::int64_t k, F32 weights) __attribute__((always_inline)) { store(out + 16 * k, weights); });
  return out;
}

// Add the products of some rows with a block of inputs to their sums, or begin with them.
template <int num_rows, int num_panels>
[[gnu::noinline]] void add_block(const float* const (&weights)[num_panels], const float* x,
                      std::int64_t stride, std::int64_t length, const Panels<num_panels>& to,
                      bool first) {
  F32 sum[num_rows][num_panels];
  ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++)
      sum[r][p] = first ? zero_f32() : load_f32(to.sums[p] + 16 * r);
  for (std::int64_t k = 0; k < length; k++) {
    F32 w[num_panels];
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) w[p] = load_f32(weights[p] + 16 * k);
    ESPALIER_UNROLL for (int r = 0; r < num_rows; r++) {
      const F32 input = set_f32(x[r * stride + k]);
      ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) sum[r][p] = fma(input, w[p], sum[r][p]);
    }
  }
  ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) store(to.sums[p] + 16 * r, sum[r][p]);
}

// The same product for one or two rows, whose weights are not worth unpacking first.
template <int num_rows>
[[gnu::noinline]] void multiply_few(const Matrix& matrix, const std::uint8_t* panel, const float* x,
                         float* sums) {
  const std::int64_t inputs = matrix.num_inputs;
  F32 sum[num_rows];
  ESPALIER_UNROLL for (int r = 0; r < num_rows; r++) sum[r] = zero_f32();
  for_each_input(matrix, panel, 0, inputs, [&](std::int64_t k, F32 weights) __attribute__((always_inline)) {
    ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
      sum[r] = fma(set_f32(x[r * inputs + k]), weights, sum[r]);
  });
  ESPALIER_UNROLL for (int r = 0; r < num_rows; r++) store(sums + 16 * r, sum[r]);
}

// -- integers: exact sums over a group, added up in float32 from group to group --------------

template <int num_rows, int num_panels>
[[gnu::noinline]] void multiply_q4(const Panels<num_panels>& at, bool has_min, std::int64_t groups,
                        const PreparedRows& rows, std::int64_t row) {
  const std::int8_t* x = rows.i8 + row * group_len;
  const float* scale = rows.scale8 + row;
  const float* total = rows.sum8 + row;
  F32 sum[num_rows][num_panels];
  ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) sum[r][p] = zero_f32();
  const std::int64_t stride = has_min ? 320 : 288;
  for (std::int64_t g = 0; g < groups;
       g++, x += rows.num_rows * group_len, scale += rows.num_rows, total += rows.num_rows) {
    NibbleSums products[num_rows][num_panels];
    ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
      ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) products[r][p] = zero_nibble_sums();
    for (int j = 0; j < 4; j++) {
      Nibbles low[num_panels], high[num_panels];
      ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) {
        const std::uint8_t* nibbles = at.weights[p] + g * stride + (has_min ? 64 : 32) + 64 * j;
        prefetch_weights(nibbles);
        low[p] = low_nibbles(nibbles);
        high[p] = high_nibbles(nibbles);
      }
      ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
        ESPALIER_UNROLL for (int p = 0; p < num_panels; p++)
          add_products(products[r][p], low[p], x + r * group_len + 4 * j);
      ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
        ESPALIER_UNROLL for (int p = 0; p < num_panels; p++)
          add_products(products[r][p], high[p], x + r * group_len + 16 + 4 * j);
    }
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) {
      const std::uint16_t* halves =
          reinterpret_cast<const std::uint16_t*>(at.weights[p] + g * stride);
      const F32 d = load_f16(halves);
      const F32 m = has_min ? load_f16(halves + 16) : mul(d, set_f32(-8.f));
      ESPALIER_UNROLL for (int r = 0; r < num_rows; r++) {
        const F32 scaled = mul(d, set_f32(scale[r]));
        sum[r][p] = fma(m, set_f32(total[r]), sum[r][p]);
        sum[r][p] = fma(to_f32(finish(products[r][p])), scaled, sum[r][p]);
      }
    }
  }
  ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) store(at.sums[p] + 16 * r, sum[r][p]);
}

template <int num_rows, int num_panels>
[[gnu::noinline]] void multiply_q8(const Panels<num_panels>& at, std::int64_t groups,
                        const PreparedRows& rows, std::int64_t row) {
  const std::int16_t* x = rows.i16 + row * group_len;
  F32 sum[num_rows][num_panels];
  ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) sum[r][p] = zero_f32();
  for (std::int64_t g = 0; g < groups; g++, x += rows.num_rows * group_len) {
    I32 products[num_rows][num_panels];
    ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
      ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) products[r][p] = zero_i32();
    for (int j = 0; j < 16; j++) {
      Pairs w[num_panels];
      ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) {
        const std::uint8_t* pairs = at.weights[p] + g * 544 + 32 + 32 * j;
        if (j % 2 == 0) prefetch_weights(pairs);
        w[p] = load_pairs(reinterpret_cast<const std::int8_t*>(pairs));
      }
      ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
        ESPALIER_UNROLL for (int p = 0; p < num_panels; p++)
          add_products(products[r][p], w[p], x + r * group_len + 2 * j);
    }
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++) {
      const F32 d = load_f16(reinterpret_cast<const std::uint16_t*>(at.weights[p] + g * 544));
      ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
        sum[r][p] = fma(to_f32(products[r][p]), d, sum[r][p]);
    }
  }
  ESPALIER_UNROLL for (int r = 0; r < num_rows; r++)
    ESPALIER_UNROLL for (int p = 0; p < num_panels; p++)
      store(at.sums[p] + 16 * r, mul(sum[r][p], set_f32(rows.scale16[row + r])));
}

}  // namespace espalier::ESPALIER_ISA
