// The geometry of one codec call: which tokens each page holds and where each part of its payloads lies.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lynx {

// Byte offsets into one page's anchor payload, in the order of docs/frame.md; the residual payload is codes
// alone.
struct PageLayout {
  int64_t first_token;  // absolute
  int64_t tokens;
  int64_t chunks;
  int64_t sink_rows;
  int64_t gamma_max, mu, sigma, widths, sink, codes;
  int64_t codes_bytes;
};

// What encode and decode share. Pages are aligned to absolute positions; `start` is a multiple of `page`.
struct CodecCall {
  int64_t start, tokens, page, chunk, sink_tokens;
  bool fp32_metadata;  // alg1: gamma, mu and sigma in fp32, 112 steps; otherwise T, uint8 and 120 steps
  bool pairs;          // two channels share a byte of each stream, and have steps of their own
  int64_t heads, head_dim, itemsize;

  int64_t channels() const { return heads * head_dim; }
  int64_t pages() const { return (tokens + page - 1) / page; }
  float steps() const { return fp32_metadata ? 112.0f : 120.0f; }

  PageLayout layout(int64_t index) const {
    PageLayout at;
    const int64_t gamma_bytes = channels() * (fp32_metadata ? 4 : itemsize);
    at.first_token = start + index * page;
    at.tokens = std::min(page, tokens - index * page);
    at.chunks = (at.tokens + chunk - 1) / chunk;
    at.sink_rows = std::clamp<int64_t>(sink_tokens - at.first_token, 0, at.tokens);
    const int64_t metadata_bytes = at.chunks * channels() * (fp32_metadata ? 4 : 1);
    at.gamma_max = gamma_bytes;
    at.mu = 2 * gamma_bytes;
    at.sigma = at.mu + metadata_bytes;
    at.widths = at.sigma + metadata_bytes;
    at.sink = at.widths + (pairs ? channels() / 4 : 0);
    at.codes = at.sink + at.sink_rows * channels() * itemsize;
    at.codes_bytes = ((at.tokens - at.sink_rows) * channels() + 1) / 2;
    return at;
  }
};

}  // namespace lynx
