#pragma once

#include <string>
#include <string_view>

// What kinds of GPU can do at most, for estimates and for shares of the possible.
namespace megatron {

struct GpuRoof {
  std::string_view name;    // a word of the driver's name for it: "H200"
  double matmul_flops = 0;  // a second, of bf16 products with fp32 sums, without sparsity
  double memory_bytes = 0;  // a second, read and written
  double link_bytes = 0;    // a second, to the other GPUs of a host, in one direction
};

// Of --gpu, whatever the case of its letters; null where it is not known.
const GpuRoof* gpu_roof(std::string_view name);
// Of a GPU by the driver's name: "NVIDIA A100-SXM4-80GB". Null where it is not known.
const GpuRoof* gpu_roof_of_device(std::string_view device_name);
// The GPU that rates were measured on.
const GpuRoof& measured_gpu();
// "a100, a6000, ...": for help and messages.
std::string gpu_names();

}  // namespace megatron
