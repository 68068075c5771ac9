// TPipe, TQue, TQueBind, TBuf (docs/zh/api/SIMD-API/基础API/资源管理).
#pragma once
#include "twin/tensor.h"

namespace AscendC {

class TPipe;

// The way through UB: `from` VECIN is filled by MTE2, `from` VECOUT by the vector unit; TQueBind<VECIN,
// VECOUT> goes from MTE2 to MTE3 without computing (TQueBind/TQueBind简介.md, table 1).
template <TPosition from, TPosition to, int32_t depth>
class TQueBind {
  static_assert(depth >= 1, "depth 0, in place, is not in the twin");
  static constexpr bool kIn = from == TPosition::GM && to == TPosition::VECIN;
  static constexpr bool kOut = from == TPosition::VECOUT && to == TPosition::GM;
  static constexpr bool kThrough = from == TPosition::VECIN && to == TPosition::VECOUT;
  static_assert(kIn || kOut || kThrough, "this way is not in the twin");

 public:
  template <class T>
  LocalTensor<T> AllocTensor() {
    return tensor<T>(twin::core().alloc(queue_));
  }
  template <class T>
  bool EnQue(const LocalTensor<T>& tensor) {
    twin::core().enqueue(queue_, tensor.handle());
    return true;
  }
  template <class T>
  LocalTensor<T> DeQue() {
    return tensor<T>(twin::core().dequeue(queue_));
  }
  template <class T>
  void FreeTensor(LocalTensor<T>& tensor) {
    twin::core().free(queue_, tensor.handle());
  }

 private:
  friend class TPipe;
  template <class T>
  LocalTensor<T> tensor(twin::Handle handle) const {
    return {handle, bytes_ * 8 / twin::kBits<T>};
  }
  int queue_ = -1;
  uint32_t bytes_ = 0;
};

template <TPosition position, int32_t depth>
class TQue : public TQueBind<position == TPosition::VECIN ? TPosition::GM : position,
                             position == TPosition::VECIN ? TPosition::VECIN : TPosition::GM, depth> {};

template <TPosition position>
class TBuf {
 public:
  template <class T>
  LocalTensor<T> Get() {
    return {twin::core().buffer(buffer_), bytes_ * 8 / twin::kBits<T>};
  }
  template <class T>
  LocalTensor<T> Get(uint32_t size) {  // TBuf/Get.md
    twin::require(uint64_t(size) * twin::kBits<T> <= uint64_t(bytes_) * 8, "bounds", "TBuf::Get: ", size,
                  " elements, the buffer has ", bytes_, " bytes");
    return {twin::core().buffer(buffer_), size};
  }

 private:
  friend class TPipe;
  int buffer_ = -1;
  uint32_t bytes_ = 0;
};

class TPipe {
 public:
  template <TPosition from, TPosition to, int32_t depth>
  bool InitBuffer(TQueBind<from, to, depth>& queue, int64_t buffers, int64_t bytes) {
    twin::require(queue.queue_ < 0, "queue", "InitBuffer twice for one queue");
    const int producer = from == TPosition::VECOUT ? PIPE_V : PIPE_MTE2;
    const int consumer = to == TPosition::VECIN ? PIPE_V : PIPE_MTE3;
    const TPosition position = from == TPosition::GM ? to : from;
    queue.queue_ = twin::core().add_queue(producer, consumer, position, depth, buffers, bytes);
    queue.bytes_ = uint32_t(bytes);
    return true;
  }
  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, int64_t bytes) {
    buffer.buffer_ = twin::core().add_buffer(position, twin::field<uint32_t>(bytes, "InitBuffer: bytes"));
    buffer.bytes_ = uint32_t(bytes);
    return true;
  }
};

}  // namespace AscendC
