#pragma once

#include <string>
#include <string_view>

// Peak rates of kinds of GPU, for estimates and utilization.
namespace megatron {

struct GpuRoof {
  std::string_view name;    // a word of the driver's name: "H200"
  double matmul_flops = 0;  // per second, of bf16 products with fp32 sums, without sparsity
  double memory_bytes = 0;  // per second, read plus written
  double link_bytes = 0;    // per second, to the other GPUs of a host, in one direction
  double gibibytes = 0;     // of memory, about; the driver takes a little of it
};

// The GPU of --gpu, case-insensitive; null if unknown.
const GpuRoof* gpu_roof(std::string_view name);
// The GPU with a driver's name: "NVIDIA A100-SXM4-80GB". Null if unknown.
const GpuRoof* gpu_roof_of_device(std::string_view device_name);
// The GPU on which the rates were measured.
const GpuRoof& measured_gpu();
// "a100, a6000, ...", for help and messages.
std::string gpu_names();

}  // namespace megatron
