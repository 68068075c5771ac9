// Shadows of memory: who wrote and read what, in which order, in UB (blocks of 32 bytes) and in GM (bytes).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "twin/pipes.h"

namespace twin {

constexpr uint32_t kBlock = 32;  // bytes, a DataBlock (SIMD计算说明/高维切分.md)
// NPU架构版本2201.md: 192 KiB, less 256 B and the 8 KiB that some calls use as scratch.
constexpr uint32_t kUbBytes = 192 * 1024 - 256 - 8 * 1024;

// A core's UB, as other instructions see it: a conflicting access that is not ordered after is an error.
class UbShadow {
 public:
  void access(uint32_t block, int pipe, uint32_t number, bool writes, const Pipes& pipes);

 private:
  struct Block {
    int writer = -1;
    uint32_t written = 0;                 // number of the last writing instruction
    std::array<uint32_t, kPipes> read{};  // and of the last that read, per pipe
  };
  std::vector<Block> blocks_ = std::vector<Block>(kUbBytes / kBlock);
};

// A buffer in GM that the launch was given. Cores share it: bytes that one writes are no other's in this
// launch.
class GlobalRange {
 public:
  GlobalRange(uintptr_t begin, uint64_t bytes);
  bool contains(uintptr_t address) const { return address >= begin_ && address < begin_ + bytes_; }
  uintptr_t begin() const { return begin_; }
  uint64_t bytes() const { return bytes_; }
  // `core` counts from 0; numbers as in Pipes.
  void access(uint64_t offset, uint64_t bytes, int core, int pipe, uint32_t number, bool writes,
              const Pipes& pipes);

 private:
  uintptr_t begin_;
  uint64_t bytes_;
  std::vector<uint8_t> writer_, reader_;  // core + 1; 0 nobody; reader 255: several
  std::vector<uint32_t> written_, read_;  // MTE3's, MTE2's last instruction there, of that core
};

// All of a launch.
class GlobalMemory {
 public:
  void add(uintptr_t begin, uint64_t bytes) { ranges_.emplace_back(begin, bytes); }
  // The range that holds [address, address + bytes); fails if there is none.
  GlobalRange& find(uintptr_t address, uint64_t bytes);

 private:
  std::vector<GlobalRange> ranges_;
};

}  // namespace twin
