// lynx_ascend._twin: this project's Ascend C kernels on the host twin, and their host-side tiling.
#include <pybind11/pybind11.h>

#include <string>

#include "tiling.h"
#include "twin/bindings.h"

namespace py = pybind11;

namespace {

// std::invalid_argument becomes ValueError.
py::bytes tiling(bool decode, int64_t channels, int64_t element_bytes, int64_t start, int64_t tokens,
                 int64_t first, int64_t page, int64_t chunk, int64_t sink_tokens, bool alg1, bool mean,
                 bool companded, bool residual, double alpha, int64_t blocks, int64_t block_size,
                 int64_t block_stride, int64_t row_stride, int64_t table_entries, int64_t anchor_stride,
                 int64_t residual_stride, int64_t cores, bool pairs, int64_t head_dim) {
  const lynx::Tiling made = lynx::make_tiling(
      {decode,       channels,   element_bytes, start,         tokens,          first, page,   chunk,
       sink_tokens,  alg1,       mean,          companded,     residual,        alpha, blocks, block_size,
       block_stride, row_stride, table_entries, anchor_stride, residual_stride, cores, pairs,  head_dim});
  return {reinterpret_cast<const char*>(&made), sizeof(made)};
}

}  // namespace

PYBIND11_MODULE(_twin, module) {
  twin::bind(module);
  using py::arg;
  module.def("tiling", &tiling, py::kw_only(), arg("decode"), arg("channels"), arg("element_bytes"),
             arg("start"), arg("tokens"), arg("first"), arg("page"), arg("chunk"), arg("sink_tokens"),
             arg("alg1"), arg("mean"), arg("companded"), arg("residual"), arg("alpha"), arg("blocks"),
             arg("block_size"), arg("block_stride"), arg("row_stride"), arg("table_entries"),
             arg("anchor_stride"), arg("residual_stride"), arg("cores"), arg("pairs") = false,
             arg("head_dim") = 0);
}
