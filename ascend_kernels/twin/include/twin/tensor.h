// LocalTensor and GlobalTensor (docs/zh/api/SIMD-API/基础API/数据结构).
#pragma once
#include <algorithm>

#include "twin/core.h"

namespace twin {

template <class T>
T load(const Core& core, uint32_t byte) {
  constexpr uint8_t all[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  require(std::memcmp(&core.defined[byte], all, sizeof(T)) == 0, "undefined", "reads UB byte ", byte,
          ", which nothing has written");
  T value;
  std::memcpy(&value, &core.ub[byte], sizeof(T));
  return value;
}

template <class T>
void store(Core& core, uint32_t byte, T value) {
  std::memcpy(&core.ub[byte], &value, sizeof(T));
  std::memset(&core.defined[byte], 1, sizeof(T));
}

}  // namespace twin

namespace AscendC {

template <class T>
class LocalTensor {
 public:
  LocalTensor() = default;
  LocalTensor(twin::Handle handle, uint32_t size) : handle_(handle), size_(size) {}

  LocalTensor operator[](uint32_t offset) const {
    const uint64_t bits = uint64_t(offset) * twin::kBits<T>;
    twin::require(bits % 8 == 0, "align", "offset ", offset, " of an int4b_t tensor is within a byte");
    twin::require(bits / 8 <= twin::core().room(handle_), "bounds", "offset ", offset,
                  " is behind the buffer");
    twin::Handle part = handle_;
    part.byte += uint32_t(bits / 8);
    return {part, size_ - std::min(size_, offset)};
  }
  template <class U>
  LocalTensor<U> ReinterpretCast() const {
    return {handle_, uint32_t(uint64_t(size_) * twin::kBits<T> / twin::kBits<U>)};
  }
  uint32_t GetSize() const { return size_; }

  // LocalTensor/GetValue.md, SetValue.md: on the scalar pipe, which waits for no other by itself.
  T GetValue(uint32_t index) const {
    const uint32_t byte = scalar("LocalTensor::GetValue", index, false);
    return twin::load<T>(twin::core(), byte);
  }
  void SetValue(uint32_t index, T value) const {
    const uint32_t byte = scalar("LocalTensor::SetValue", index, true);
    twin::store<T>(twin::core(), byte, value);
  }

  const twin::Handle& handle() const { return handle_; }

 private:
  uint32_t scalar(const char* name, uint32_t index, bool writes) const {
    twin::Core& core = twin::core();
    core.call = name;
    twin::require((uint64_t(index) + 1) * sizeof(T) <= core.room(handle_), "bounds", "element ", index,
                  " is behind the buffer");
    const uint32_t byte = handle_.byte + index * uint32_t(sizeof(T));
    core.begin(PIPE_S);
    core.touch_bytes(byte, sizeof(T), writes);
    core.end(1, sizeof(T), 0);
    return byte;
  }

  twin::Handle handle_;
  uint32_t size_ = 0;
};

template <class T>
class GlobalTensor {
 public:
  void SetGlobalBuffer(T* buffer) { data_ = buffer; }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor part = *this;
    part.data_ += offset;
    return part;
  }
  // GlobalTensor/GetValue.md: on the scalar pipe.
  T GetValue(uint64_t index) const {
    twin::Core& core = twin::core();
    core.call = "GlobalTensor::GetValue";
    twin::require(reinterpret_cast<uintptr_t>(data_ + index) % sizeof(T) == 0, "align",
                  "a GM address that is no multiple of ", sizeof(T));
    core.begin(PIPE_S);
    core.touch_global(data_ + index, sizeof(T), false);
    core.end(1, sizeof(T), 0);
    return data_[index];
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

}  // namespace AscendC
