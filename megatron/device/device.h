#pragma once

#include <string>

namespace megatron {

enum class DeviceType { kCpu, kCuda };

// The device that holds a tensor. Each CPU rank is a device of its own, so that the ranks of one
// process keep separate memory pools and statistics, as ranks on GPUs do.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  bool is_cpu() const { return type == DeviceType::kCpu; }
  bool operator==(const Device& other) const = default;
  // "cpu:0", "cuda:3"
  std::string str() const;
};

// How a GPU may do a stream's work. The CPU ignores it.
struct StreamOptions {
  bool allows_tf32 = false;  // products of fp32 may round their factors to TF32 (10-bit mantissa)
  bool is_deterministic = false;     // equal work gives equal bits in every run, even if slower
  bool searches_algorithms = false;  // the first large product of each size times its algorithms
                                     // and waits for the device (kernels/cuda/matmul_plans.h)

  bool operator==(const StreamOptions& other) const = default;
};

// An ordered queue of work on one device. On the CPU work is done when a call returns, so the
// stream only names the device. Cheap to copy; the native handle is borrowed.
struct Stream {
  Device device;
  void* native = nullptr;   // cudaStream_t on CUDA
  StreamOptions options{};  // GPU only

  bool is_cpu() const { return device.is_cpu(); }
  bool operator==(const Stream& other) const = default;
};

}  // namespace megatron
