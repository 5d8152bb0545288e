#pragma once

#include <string>

namespace megatron {

enum class DeviceType { kCpu, kCuda };

// The device that holds a tensor. Each CPU rank is a device of its own, so that the ranks of one
// process keep separate memory pools and statistics, as ranks on GPUs do.
//
// A dry device stands for a device of its type: code makes the same choices, but memory is only
// counted (device/dry_memory.h) and nothing is computed. It shows the memory of a run without
// allocating it.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool is_dry = false;

  bool is_cpu() const { return type == DeviceType::kCpu; }
  // True if the host can read and write its memory.
  bool has_host_memory() const { return is_cpu() && !is_dry; }
  bool operator==(const Device& other) const = default;
  // "cpu:0", "cuda:3", "dry cuda:0"
  std::string str() const;
};

// Options of a GPU stream's work; the CPU ignores them.
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
  bool is_dry() const { return device.is_dry; }
  // True if it is a queue of a GPU.
  bool has_queue() const { return !is_cpu() && !is_dry(); }
  bool operator==(const Stream& other) const = default;
};

// The host's own stream beside that of a device. Beside a dry device the host is dry, too: a CPU
// whose index is below 0.
inline Stream host_beside(Stream stream) {
  if (!stream.is_dry()) return {};
  return {.device = {.type = DeviceType::kCpu, .index = -1 - stream.device.index, .is_dry = true}};
}

}  // namespace megatron
