// Runs pages that test_aarch64.py wrote through every instruction set's kernels, without PyTorch.
//
// Usage: aarch64 ISA CASES RESULTS. CASES holds cases without gaps, each a Header, the thresholds (fp32), the
// levels (fp32 [256], then [16]), the block ids (int64) and the caches (to encode, and to decode into).
// RESULTS receives for each case the bytes of: anchors, residuals, the cache decoded from the anchors alone,
// and from both.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "cpu/pages.h"

namespace {

using namespace lynx;

struct Header {
  int64_t type;  // 0 bf16, 1 fp16, 2 fp32
  int64_t start, tokens, page, chunk, sink_tokens, fp32_metadata, pairs, mean, first;
  int64_t heads, head_dim, block_size, blocks, offset, strides[4];  // of the cache, in elements
  int64_t thresholds, tables, cache_bytes, anchor_stride, residual_stride;
};

template <typename T>
std::vector<T> read(std::istream& in, int64_t count) {
  std::vector<T> values(count);
  in.read(reinterpret_cast<char*>(values.data()), count * sizeof(T));
  return values;
}

void write(std::ostream& out, const std::vector<uint8_t>& bytes) {
  out.write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <typename T>
void run(const Header& h, std::istream& in, std::ostream& out) {
  const CodecCall call{h.start,      h.tokens, h.page,     h.chunk,  h.sink_tokens, h.fp32_metadata != 0,
                       h.pairs != 0, h.heads,  h.head_dim, sizeof(T)};
  const auto thresholds = read<float>(in, h.thresholds);
  const auto levels = read<float>(in, h.tables * 256), anchor_levels = read<float>(in, h.tables * 16);
  const auto ids = read<int64_t>(in, h.blocks);
  auto source = read<uint8_t>(in, h.cache_bytes), coarse = read<uint8_t>(in, h.cache_bytes), full = coarse;
  std::vector<uint8_t> anchors(call.pages() * h.anchor_stride, 0xA5),
      residuals(call.pages() * h.residual_stride, 0xA5);
  const auto paged = [&](auto* data) {
    return cpu::PagedCache<std::remove_pointer_t<decltype(data)>>{
        data + h.offset, h.strides[0], h.strides[1], h.strides[2], h.strides[3], h.block_size, ids.data()};
  };
  const auto cells = cpu::make_cells(thresholds.data(), h.thresholds);
  if (h.thresholds && !cells) throw std::runtime_error("thresholds refused");
  for (int64_t i = 0; i < call.pages(); ++i) {
    uint8_t *anchor = &anchors[i * h.anchor_stride], *residual = &residuals[i * h.residual_stride];
    cpu::encode_page(call, i, h.mean != 0, paged(reinterpret_cast<const T*>(source.data())),
                     cpu::Tables{cells ? &*cells : nullptr, nullptr}, anchor, residual);
    if (call.layout(i).first_token + call.layout(i).tokens <= h.first) continue;
    cpu::decode_page(call, i, h.first, anchor, nullptr,
                     cpu::Tables{nullptr, h.tables ? anchor_levels.data() : nullptr},
                     paged(reinterpret_cast<T*>(coarse.data())), false);
    cpu::decode_page(call, i, h.first, anchor, residual,
                     cpu::Tables{nullptr, h.tables ? levels.data() : nullptr},
                     paged(reinterpret_cast<T*>(full.data())), true);
  }
  for (const auto* bytes : {&anchors, &residuals, &coarse, &full}) write(out, *bytes);
}

}  // namespace

int main(int, char** argv) {
  cpu::use_kernels(argv[1]);
  std::ifstream in(argv[2], std::ios::binary);
  std::ofstream out(argv[3], std::ios::binary);
  Header header;
  while (in.read(reinterpret_cast<char*>(&header), sizeof header)) {
    if (header.type == 0)
      run<cpu::BFloat16>(header, in, out);
    else if (header.type == 1)
      run<cpu::Half>(header, in, out);
    else
      run<float>(header, in, out);
  }
  return out.good() && in.eof() ? 0 : 1;
}
