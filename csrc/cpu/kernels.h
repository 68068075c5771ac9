// The kernels an instruction set provides, as a table of functions, and how the one in use is chosen.
//
// A kernel works on `count` rows of one chunk and `n` channels, lane = channel; pages, payloads and block
// tables are the page walk's business (pages.cpp). Every instruction set computes the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/cells.h"
#include "cpu/floats.h"

namespace lynx::cpu {

// Row r of a tile is the `n` elements from rows[r] + offset.
template <typename T>
struct Rows {
  T* const* rows;
  int64_t count;
  int64_t offset;
  int64_t n;
};

// Tables of a companded quantiser; null for the linear grid, whose closed form needs none.
struct Tables {
  const Cells* cells = nullptr;   // to encode
  const float* levels = nullptr;  // to decode, [256]: code byte -> level; [16] for the anchor alone
};

// One chunk's centre and scale (s) per channel; the quantiser's steps to a scale (N), and 1 / N.
struct Scales {
  const float* center;
  const float* scale;
  const float* steps;
  const float* unit;

  Scales from(int64_t lane) const { return {center + lane, scale + lane, steps + lane, unit + lane}; }
};

// How channels share bytes in codec `pair`: of each 2 * quarter neighbours, channel i < quarter is the first
// and i + quarter the second of a pair.
struct Pairs {
  const uint8_t* width;  // of each pair: the first channel's bits in the anchor
  int64_t quarter;       // of a head

  Pairs from(int64_t lane) const { return {width + lane / 2, quarter}; }
};

// Nibbles of a tile: those of row r start at nibble `first + r * stride`; the even nibble of a byte is the
// low one.
template <typename Byte>
struct Nibbles {
  Byte* anchor;
  Byte* residual;  // null when decoding the anchor alone
  int64_t first;
  int64_t stride;
};

// Minimum and maximum of each channel over a page (gamma) or a chunk, with +0.0 for -0.0.
struct Range {
  const float* lo;
  const float* hi;

  Range from(int64_t lane) const { return {lo + lane, hi + lane}; }
};

template <typename T>
struct TypedKernels {
  // Elementwise minimum and maximum over the rows, +0.0 for -0.0. One of the two is not finite if any element
  // is not.
  void (*range)(Rows<const T> x, float* lo, float* hi);
  // Elementwise mean by the fixed tree of row halves.
  void (*mean)(Rows<const T> x, float* out);
  // Quantises the rows. Bytes that the tile fills half are OR-ed into and must have been zeroed.
  void (*encode)(Rows<const T> x, Scales scales, const Tables& tables, Nibbles<uint8_t> out);
  // stream: the rows are not read soon, so they may bypass the caches.
  void (*decode)(Rows<T> out, Scales scales, const Tables& tables, Nibbles<const uint8_t> codes, bool stream);
  // The same for codec `pair`, of whole half heads; a pair's byte lies where two channels' nibbles would.
  void (*encode_pairs)(Rows<const T> x, Scales scales, Pairs pairs, Nibbles<uint8_t> out);
  void (*decode_pairs)(Rows<T> out, Scales scales, Pairs pairs, Nibbles<const uint8_t> codes, bool stream);
};

struct Kernels {
  const char* isa;
  TypedKernels<BFloat16> bf16;
  TypedKernels<Half> fp16;
  TypedKernels<float> fp32;
  // One chunk's mu and sigma (whole numbers unless fp32_metadata) of n channels; mean is null for midrange.
  void (*metadata)(Range gamma, Range chunk, const float* mean, bool fp32_metadata, int64_t n, float* mu,
                   float* sigma);
  // Centre and scale from metadata alone. largest: FMAX of the element type.
  void (*scales)(Range gamma, const float* mu, const float* sigma, bool fp32_metadata, float largest,
                 int64_t n, float* center, float* scale);

  template <typename T>
  const TypedKernels<T>& typed() const {
    if constexpr (sizeof(T) == 4)
      return fp32;
    else if constexpr (__is_same(T, Half))
      return fp16;
    else
      return bf16;
  }
};

// The tables built in; null on other architectures.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

// Those that this machine can run, the fastest last.
std::vector<const Kernels*> supported_kernels();

// The fastest supported, or the one LYNX_ASCEND_ISA names when this is first called.
// Throws std::invalid_argument if the variable names none that is built in and supported.
const Kernels& kernels();

// Makes kernels() return another instruction set's; std::invalid_argument if it is not supported.
void use_kernels(const std::string& isa);

}  // namespace lynx::cpu
