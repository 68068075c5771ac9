// Flags, barriers and the core's number (docs/zh/api/SIMD-API/基础API/同步控制/核内同步,
// 工具接口/系统资源与变量).
#pragma once
#include "twin/core.h"

namespace twin {

constexpr std::pair<int, int> ends(AscendC::HardEvent event) {
  using E = AscendC::HardEvent;
  switch (event) {
    case E::MTE2_V:
      return {PIPE_MTE2, PIPE_V};
    case E::V_MTE2:
      return {PIPE_V, PIPE_MTE2};
    case E::V_MTE3:
      return {PIPE_V, PIPE_MTE3};
    case E::MTE3_V:
      return {PIPE_MTE3, PIPE_V};
    case E::MTE2_S:
      return {PIPE_MTE2, PIPE_S};
    case E::S_MTE2:
      return {PIPE_S, PIPE_MTE2};
    case E::V_S:
      return {PIPE_V, PIPE_S};
    case E::S_V:
      return {PIPE_S, PIPE_V};
    case E::MTE3_S:
      return {PIPE_MTE3, PIPE_S};
    case E::S_MTE3:
      return {PIPE_S, PIPE_MTE3};
    case E::MTE2_MTE3:
      return {PIPE_MTE2, PIPE_MTE3};
    default:
      return {PIPE_MTE3, PIPE_MTE2};
  }
}

}  // namespace twin

namespace AscendC {

template <HardEvent event>
void SetFlag(int32_t id) {
  twin::core().set_flag(twin::ends(event).first, twin::ends(event).second, id);
}

template <HardEvent event>
void WaitFlag(int32_t id) {
  twin::core().wait_flag(twin::ends(event).first, twin::ends(event).second, id);
}

template <pipe_t pipe>
void PipeBarrier() {
  twin::core().barrier(pipe);
}

inline int64_t GetBlockIdx() { return twin::core().index; }
inline int64_t GetBlockNum() { return twin::core().count; }

}  // namespace AscendC
