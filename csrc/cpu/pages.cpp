// The page walk on the CPU, the same for every instruction set; docs/frame.md gives the payloads.
#include "cpu/pages.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

namespace lynx::cpu {
namespace {

// Payloads have no alignment: their numbers are copied in and out.
template <typename T>
void write(uint8_t* out, const std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    if constexpr (std::is_same_v<T, uint8_t>)
      value = static_cast<uint8_t>(values[i]);
    else
      narrow(values[i], &value);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
void read(const uint8_t* in, std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, uint8_t>)
      values[i] = value;
    else
      values[i] = widen(value);
  }
}

// The channels of a row as runs that are contiguous in memory: all heads at once where they are adjacent.
struct Runs {
  int64_t count, length, stride;

  Runs(const CodecCall& call, int64_t head_stride)
      : count(call.heads), length(call.head_dim), stride(head_stride) {
    if (head_stride == call.head_dim || call.heads == 1) {
      count = 1;
      length = call.channels();
    }
  }

  template <typename T>
  Rows<T> tile(T* const* rows, int64_t run, int64_t begin, int64_t end) const {
    return {rows + begin, end - begin, run * stride, length};
  }
};

// The rows of tokens begin .. tokens - 1 of a page, channels contiguous; earlier ones stay null, their blocks
// untouched. Caches whose head_dim is not contiguous (vLLM's CPU attention keeps K transposed in a block) are
// staged in a copy.
template <typename T>
class PageRows {
 public:
  PageRows(const CodecCall& call, const PageLayout& at, const PagedCache<T>& cache, int64_t begin)
      : call_(call), at_(at), cache_(cache), begin_(begin), rows_(at.tokens, nullptr) {
    if (staged()) copy_.resize(at.tokens * call.channels());
    for (int64_t t = begin; t < at.tokens; ++t)
      rows_[t] = staged() ? &copy_[t * call.channels()] : cache.row(at.first_token + t);
  }

  T* const* data() const { return rows_.data(); }
  int64_t head_stride() const { return staged() ? call_.head_dim : cache_.head_stride; }

  // Fills the copy from the cache.
  void load() {
    if (staged()) for_each_element([](T& cached, Element& copied) { copied = cached; });
  }

  // Brings the copy back to the cache.
  void store() {
    if (staged()) for_each_element([](T& cached, Element& copied) { cached = copied; });
  }

 private:
  using Element = std::remove_const_t<T>;

  bool staged() const { return cache_.dim_stride != 1 && call_.head_dim > 1; }

  // Runs of tokens in one block are walked innermost: that is how such a cache is contiguous.
  template <typename Move>
  void for_each_element(const Move& move) {
    for (int64_t t = begin_, end; t < at_.tokens; t = end) {
      end = std::min(at_.tokens, t + cache_.block_size - (at_.first_token + t) % cache_.block_size);
      T* const block = cache_.row(at_.first_token + t);
      for (int64_t head = 0; head < call_.heads; ++head)
        for (int64_t dim = 0; dim < call_.head_dim; ++dim) {
          T* cached = block + head * cache_.head_stride + dim * cache_.dim_stride;
          Element* copied = &copy_[t * call_.channels() + head * call_.head_dim + dim];
          for (int64_t i = t; i < end; ++i, cached += cache_.row_stride, copied += call_.channels())
            move(*cached, *copied);
        }
    }
  }

  const CodecCall& call_;
  const PageLayout& at_;
  const PagedCache<T>& cache_;
  int64_t begin_;
  std::vector<Element> copy_;
  std::vector<T*> rows_;
};

// The payload's metadata as numbers: gamma [C] and, chunk by chunk, mu and sigma [chunks][C].
struct Metadata {
  std::vector<float> g0, g1, mu, sigma;

  Metadata(int64_t chunks, int64_t channels)
      : g0(channels), g1(channels), mu(chunks * channels), sigma(chunks * channels) {}

  Range gamma() const { return {g0.data(), g1.data()}; }
};

template <typename Gamma, typename Scalar>
void write_metadata(uint8_t* anchor, const PageLayout& at, const Metadata& metadata) {
  write<Gamma>(anchor, metadata.g0);
  write<Gamma>(anchor + at.gamma_max, metadata.g1);
  write<Scalar>(anchor + at.mu, metadata.mu);
  write<Scalar>(anchor + at.sigma, metadata.sigma);
}

template <typename Gamma, typename Scalar>
void read_metadata(const uint8_t* anchor, const PageLayout& at, Metadata& metadata) {
  read<Gamma>(anchor, metadata.g0);
  read<Gamma>(anchor + at.gamma_max, metadata.g1);
  read<Scalar>(anchor + at.mu, metadata.mu);
  read<Scalar>(anchor + at.sigma, metadata.sigma);
}

// The first channel of a pair; the second is a quarter of a head further on.
int64_t first_of(int64_t pair, int64_t quarter) { return pair / quarter * 2 * quarter + pair % quarter; }

// Quantiser steps [C] and what one is of a scale: the codec's own, or of each channel of pairs what its bits
// in the anchor allow.
struct Steps {
  std::vector<float> count, unit;

  Steps(const CodecCall& call, const std::vector<uint8_t>& widths)
      : count(call.channels(), call.steps()), unit(call.channels()) {
    const int64_t quarter = call.head_dim / 4;
    for (int64_t pair = 0; pair < static_cast<int64_t>(widths.size()); ++pair) {
      const int64_t first = first_of(pair, quarter), bits = widths[pair];
      count[first] = static_cast<float>(128 - (128 >> bits));
      count[first + quarter] = static_cast<float>(128 - (128 >> (8 - bits)));
    }
    for (size_t i = 0; i < unit.size(); ++i)
      unit[i] = static_cast<float>(1.0 / static_cast<double>(count[i]));
  }
};

// Bits in the anchor of each pair's first channel, [C / 2], by how much the pair's channels vary within
// chunks.
std::vector<uint8_t> choose_widths(const CodecCall& call, const PageLayout& at, const Metadata& metadata) {
  constexpr float kFifth = 1.5f, kSixth = 6.0f;  // codec/pairs.py
  const int64_t channels = call.channels(), quarter = call.head_dim / 4;
  std::vector<float> extent(channels);
  for (int64_t i = 0; i < channels; ++i) {
    float sum = 0;  // of whole numbers, exact
    for (int64_t chunk = 0; chunk < at.chunks; ++chunk) sum += metadata.sigma[chunk * channels + i];
    extent[i] = sum * (0.5f * metadata.g1[i] - 0.5f * metadata.g0[i]);
  }
  std::vector<uint8_t> widths(channels / 2);
  for (int64_t pair = 0; pair < channels / 2; ++pair) {
    const float first = extent[first_of(pair, quarter)], second = extent[first_of(pair, quarter) + quarter];
    widths[pair] = static_cast<uint8_t>(4 + (first > kFifth * second) + (first > kSixth * second) -
                                        (second > kFifth * first) - (second > kSixth * first));
  }
  return widths;
}

void write_widths(uint8_t* out, const std::vector<uint8_t>& widths) {
  for (size_t i = 0; i < widths.size(); i += 2)
    out[i / 2] = static_cast<uint8_t>(widths[i] | (widths[i + 1] << 4));
}

std::vector<uint8_t> read_widths(const uint8_t* in, const CodecCall& call) {
  std::vector<uint8_t> widths(call.pairs ? call.channels() / 2 : 0);
  for (size_t i = 0; i < widths.size(); ++i) {
    const int nibble = i % 2 ? in[i / 2] >> 4 : in[i / 2] & 15;
    widths[i] = static_cast<uint8_t>(std::clamp(nibble, 2, 6));  // a payload's may be anything
  }
  return widths;
}

// Calls visit(begin, end, scales) for each chunk's coded tokens from `first` on, if there are any.
template <typename T, typename Visit>
void for_each_chunk(const CodecCall& call, const PageLayout& at, const Metadata& metadata, const Steps& steps,
                    int64_t first, const Visit& visit) {
  const int64_t channels = call.channels();
  std::vector<float> center(channels), scale(channels);
  for (int64_t chunk = first / call.chunk; chunk < at.chunks; ++chunk) {
    const int64_t begin = std::max(chunk * call.chunk, first);
    const int64_t end = std::min((chunk + 1) * call.chunk, at.tokens);
    if (begin >= end) continue;
    const int64_t lane = chunk * channels;
    kernels().scales(metadata.gamma(), &metadata.mu[lane], &metadata.sigma[lane], call.fp32_metadata,
                     largest<T>(), channels, center.data(), scale.data());
    visit(begin, end, Scales{center.data(), scale.data(), steps.count.data(), steps.unit.data()});
  }
}

// Minima [chunks][C], then maxima [chunks][C].
template <typename T>
std::vector<float> chunk_ranges(const CodecCall& call, const PageLayout& at, const Runs& runs,
                                const T* const* rows) {
  std::vector<float> ranges(2 * at.chunks * call.channels());
  for (int64_t chunk = 0; chunk < at.chunks; ++chunk) {
    const int64_t begin = chunk * call.chunk, end = std::min(begin + call.chunk, at.tokens);
    for (int64_t run = 0; run < runs.count; ++run) {
      float* lo = &ranges[chunk * call.channels() + run * runs.length];
      float* hi = lo + at.chunks * call.channels();
      kernels().typed<T>().range(runs.tile(rows, run, begin, end), lo, hi);
    }
  }
  return ranges;
}

template <typename T>
Metadata measure(const CodecCall& call, const PageLayout& at, const Runs& runs, bool mean,
                 const T* const* rows) {
  const int64_t channels = call.channels();
  const std::vector<float> ranges = chunk_ranges(call, at, runs, rows);
  Metadata metadata(at.chunks, channels);
  // The page's range is that of its chunks' ranges.
  std::vector<const float*> extremes(2 * at.chunks);
  for (size_t i = 0; i < extremes.size(); ++i) extremes[i] = &ranges[i * channels];
  const auto count = static_cast<int64_t>(extremes.size());
  kernels().fp32.range({extremes.data(), count, 0, channels}, metadata.g0.data(), metadata.g1.data());

  std::vector<float> means(mean ? channels : 0);
  for (int64_t chunk = 0; chunk < at.chunks; ++chunk) {
    const int64_t begin = chunk * call.chunk, end = std::min(begin + call.chunk, at.tokens);
    for (int64_t run = 0; mean && run < runs.count; ++run)
      kernels().typed<T>().mean(runs.tile(rows, run, begin, end), &means[run * runs.length]);
    const int64_t lane = chunk * channels;
    kernels().metadata(metadata.gamma(), {extremes[chunk], extremes[at.chunks + chunk]},
                       mean ? means.data() : nullptr, call.fp32_metadata, channels, &metadata.mu[lane],
                       &metadata.sigma[lane]);
  }
  return metadata;
}

}  // namespace

template <typename T>
void encode_page(const CodecCall& call, int64_t index, bool mean, const PagedCache<const T>& cache,
                 const Tables& tables, uint8_t* anchor, uint8_t* residual) {
  const PageLayout at = call.layout(index);
  const int64_t channels = call.channels();
  PageRows<const T> page(call, at, cache, 0);
  page.load();
  const T* const* const rows = page.data();
  const Runs runs(call, page.head_stride());
  const Metadata metadata = measure<T>(call, at, runs, mean, rows);
  if (call.fp32_metadata)
    write_metadata<float, float>(anchor, at, metadata);
  else
    write_metadata<T, uint8_t>(anchor, at, metadata);
  std::vector<uint8_t> widths;
  if (call.pairs) {
    widths = choose_widths(call, at, metadata);
    write_widths(anchor + at.widths, widths);
  }

  uint8_t* sink = anchor + at.sink;
  for (int64_t t = 0; t < at.sink_rows; ++t)
    for (int64_t run = 0; run < runs.count; ++run, sink += runs.length * sizeof(T))
      std::memcpy(sink, rows[t] + run * runs.stride, runs.length * sizeof(T));

  if (call.head_dim % 2) {  // then tiles share bytes
    std::memset(anchor + at.codes, 0, at.codes_bytes);
    std::memset(residual, 0, at.codes_bytes);
  }
  const Steps steps(call, widths);
  const Pairs pairs{widths.data(), call.head_dim / 4};
  for_each_chunk<T>(call, at, metadata, steps, at.sink_rows, [&](int64_t begin, int64_t end, Scales scales) {
    for (int64_t run = 0; run < runs.count; ++run) {
      const int64_t lane = run * runs.length;
      const Nibbles<uint8_t> out{anchor + at.codes, residual, (begin - at.sink_rows) * channels + lane,
                                 channels};
      const auto tile = runs.tile(rows, run, begin, end);
      if (call.pairs)
        kernels().typed<T>().encode_pairs(tile, scales.from(lane), pairs.from(lane), out);
      else
        kernels().typed<T>().encode(tile, scales.from(lane), tables, out);
    }
  });
}

template <typename T>
void decode_page(const CodecCall& call, int64_t index, int64_t first, const uint8_t* anchor,
                 const uint8_t* residual, const Tables& tables, const PagedCache<T>& cache, bool stream) {
  const PageLayout at = call.layout(index);
  const int64_t channels = call.channels();
  const int64_t wanted = std::max<int64_t>(first - at.first_token, 0);
  PageRows<T> page(call, at, cache, wanted);
  T* const* const rows = page.data();
  const Runs runs(call, page.head_stride());
  Metadata metadata(at.chunks, channels);
  if (call.fp32_metadata)
    read_metadata<float, float>(anchor, at, metadata);
  else
    read_metadata<T, uint8_t>(anchor, at, metadata);

  for (int64_t t = wanted; t < at.sink_rows; ++t)
    for (int64_t run = 0; run < runs.count; ++run) {
      const int64_t lane = t * channels + run * runs.length;
      std::memcpy(rows[t] + run * runs.stride, anchor + at.sink + lane * sizeof(T), runs.length * sizeof(T));
    }

  const int64_t coded = std::max(wanted, at.sink_rows);
  const std::vector<uint8_t> widths = read_widths(anchor + at.widths, call);
  const Steps steps(call, widths);
  const Pairs pairs{widths.data(), call.head_dim / 4};
  for_each_chunk<T>(call, at, metadata, steps, coded, [&](int64_t begin, int64_t end, Scales scales) {
    for (int64_t run = 0; run < runs.count; ++run) {
      const int64_t lane = run * runs.length;
      const Nibbles<const uint8_t> in{anchor + at.codes, residual, (begin - at.sink_rows) * channels + lane,
                                      channels};
      const auto tile = runs.tile(rows, run, begin, end);
      if (call.pairs)
        kernels().typed<T>().decode_pairs(tile, scales.from(lane), pairs.from(lane), in, stream);
      else
        kernels().typed<T>().decode(tile, scales.from(lane), tables, in, stream);
    }
  });
  page.store();
}

#define LYNX_INSTANTIATE(T)                                                                                \
  template void encode_page<T>(const CodecCall&, int64_t, bool, const PagedCache<const T>&, const Tables&, \
                               uint8_t*, uint8_t*);                                                        \
  template void decode_page<T>(const CodecCall&, int64_t, int64_t, const uint8_t*, const uint8_t*,         \
                               const Tables&, const PagedCache<T>&, bool);
LYNX_INSTANTIATE(BFloat16)
LYNX_INSTANTIATE(Half)
LYNX_INSTANTIATE(float)
#undef LYNX_INSTANTIATE

}  // namespace lynx::cpu
