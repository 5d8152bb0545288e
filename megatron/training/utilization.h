#pragma once

#include <optional>

#include "megatron/device/device.h"
#include "megatron/training/run_config.h"

// Utilization of a device's peak rate: model FLOPs utilization (MFU) counts the operations of the
// model, hardware FLOPs utilization (HFU) also those that recomputation repeats (Chowdhery et al.
// 2022, arXiv:2204.02311, appendix B; Korthikanti et al. 2022, arXiv:2205.05198, sec. 5).
namespace megatron {

// FLOP/s of the device's products in the dtype of the run, at their peak. None if unknown: on the
// CPU, on a GPU without a row in gpu_roof.h, and in fp32.
std::optional<double> peak_flops(const RunConfig& run, Device device);

// Operations of the device for an operation of the model: 1 without recomputation, at most 4/3.
double hardware_operations_factor(const RunConfig& run);

}  // namespace megatron
