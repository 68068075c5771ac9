// Device tensors as the host sees them: the emulated device's memory is host memory.
#pragma once

#include <ATen/ATen.h>

namespace emulated {

// Waits until the current stream of the device has run all that was queued on it. Whatever reads or writes
// device memory on the host does this first: that is what orders it after the stream's earlier work. Throws
// what a task threw.
void drain(c10::Device device);

// The same memory as a CPU tensor; others than device tensors are returned as they are. Does not wait.
at::Tensor host(const at::Tensor& tensor);

}  // namespace emulated
