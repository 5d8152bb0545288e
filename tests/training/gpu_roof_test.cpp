#include "megatron/training/gpu_roof.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(GpuRoofTest, KnowsGpusByTheDriversName) {
  const auto name_of = [](std::string_view device) {
    const GpuRoof* const gpu = gpu_roof_of_device(device);
    return gpu == nullptr ? "" : std::string(gpu->name);
  };
  EXPECT_EQ(name_of("NVIDIA H200"), "H200");
  EXPECT_EQ(name_of("NVIDIA H100 80GB HBM3"), "H100");
  EXPECT_EQ(name_of("NVIDIA A100-SXM4-80GB"), "A100");
  EXPECT_EQ(name_of("NVIDIA RTX A6000"), "A6000");
  EXPECT_EQ(name_of("NVIDIA L40S"), "L40S");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3090"), "3090");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 4090"), "4090");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 5090"), "5090");
  EXPECT_EQ(name_of("NVIDIA B200"), "B200");
  EXPECT_EQ(name_of("Tesla T4"), "");
  EXPECT_EQ(name_of("NVIDIA RTX 6000 Ada Generation"), "");
  EXPECT_EQ(name_of(""), "");
}

TEST(GpuRoofTest, KnowsGpusByTheirFlag) {
  EXPECT_EQ(gpu_names(), "a100, a6000, 3090, l40s, 4090, h100, h200, b200, 5090");
  EXPECT_EQ(gpu_roof("l40S")->name, "L40S");
  EXPECT_EQ(gpu_roof("v100"), nullptr);
  EXPECT_EQ(measured_gpu().name, "H200");
}

}  // namespace
}  // namespace megatron
