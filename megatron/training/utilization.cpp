#include "megatron/training/utilization.h"

#include <algorithm>

#include "megatron/device/cuda.h"
#include "megatron/training/flops.h"
#include "megatron/training/gpu_roof.h"

namespace megatron {
namespace {

// Layers whose forward pass runs twice, of all.
double recomputed_layers(const RunConfig& run) {
  const TransformerConfig& config = run.transformer;
  if (config.recompute_granularity != RecomputeGranularity::kFull) return 0;
  if (config.recompute_method != RecomputeMethod::kBlock) return 1;
  const int64_t chunks = run.parallel.pipeline_model_parallel_size *
                         std::max<int64_t>(run.parallel.virtual_pipeline_model_parallel_size, 1);
  const auto layers = static_cast<double>(config.num_layers);
  return std::min(static_cast<double>(config.recompute_num_layers * chunks) / layers, 1.0);
}

}  // namespace

std::optional<double> peak_flops(const RunConfig& run, Device device) {
  if (device.is_cpu() || !(run.optimizer.bf16 || run.optimizer.fp16)) return std::nullopt;
  const GpuRoof* const gpu = gpu_roof_of_device(cuda::properties(device.index).name);
  if (gpu == nullptr) return std::nullopt;
  constexpr double kFp8Speedup = 2;  // of products on GPUs that have FP8
  return gpu->matmul_flops * (run.transformer.fp8.is_on() ? kFp8Speedup : 1.0);
}

// The forward pass of whole layers is a third of the operations; the output layer is not
// recomputed.
double hardware_operations_factor(const RunConfig& run) {
  TransformerConfig headless = run.transformer;
  headless.padded_vocab_size = 0;
  const double layers = causal_flops(headless, 1) / causal_flops(run.transformer, 1);
  // A pass of products is 2 of the 6 FLOPs of a multiplication.
  const double parts =
      2.0 * static_cast<double>(run.transformer.seq_length) *
      static_cast<double>(run.transformer.num_layers + run.transformer.mtp_num_layers) *
      recomputed_work(run.transformer).products;
  return 1.0 + layers / 3.0 * recomputed_layers(run) + parts / causal_flops(run.transformer, 1);
}

}  // namespace megatron
