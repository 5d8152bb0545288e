#include "megatron/run/memory_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/run/cheapest_recomputation.h"

namespace megatron {
namespace {

// Adds a change of the run to the remedies if the changed run fits.
template <class Change>
void consider(std::vector<std::string>& remedies, const RunConfig& config, DeviceType device,
              int64_t bytes, const std::string& flags, const Change& change) {
  RunConfig changed = config;
  change(changed);
  const int64_t needs =
      needed_bytes(largest_rank_memory(planned_training(changed, device)), device);
  if (needs <= bytes) {
    remedies.push_back(fmt::format("{} (needs {})", flags, size_text(needs)));
  }
}

}  // namespace

int64_t needed_bytes(const RankMemory& memory, DeviceType device) {
  return memory.total_bytes() + (device == DeviceType::kCpu ? memory.host_bytes() : 0);
}

std::string size_text(int64_t bytes) {
  if (bytes < (1 << 30)) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

PlannedTraining planned_training(const RunConfig& config, DeviceType device) {
  const int64_t a_step = config.training.micro_batch_size * config.parallel.data_parallel_size;
  return {.transformer = config.transformer,
          .parallel = config.parallel,
          .optimizer = config.optimizer,
          .micro_batch_size = config.training.micro_batch_size,
          .num_microbatches = std::max<int64_t>(1, config.training.global_batch_size / a_step),
          .device = device,
          .is_deterministic = config.training.deterministic_mode};
}

std::vector<std::string> summary_of(const RankMemory& memory) {
  std::vector<std::string> parts;
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    parts.push_back(fmt::format("{} {}", name_of(category), size_text(memory.bytes(category))));
  }
  std::vector<std::string> lines = {fmt::format("> memory plan: {}", fmt::join(parts, ", ")),
                                    fmt::format("> memory plan: {} at the peak, {}",
                                                size_text(memory.total_bytes()), memory.peak_at)};
  for (const MemoryUse& row : memory.host_rows) {
    lines.push_back(
        fmt::format("> memory plan: {} of host memory for {}", size_text(row.bytes), row.purpose));
  }
  return lines;
}

std::vector<std::string> remedies(const RunConfig& config, DeviceType device, int64_t bytes) {
  std::vector<std::string> found;
  const int64_t micro = config.training.micro_batch_size;
  // Only sizes that divide the global batch.
  for (int64_t size = micro - 1; size >= 1; --size) {
    if (config.training.global_batch_size % (size * config.parallel.data_parallel_size) != 0)
      continue;
    const size_t before = found.size();
    consider(found, config, device, bytes, fmt::format("--micro-batch-size {}", size),
             [size](RunConfig& changed) { changed.training.micro_batch_size = size; });
    if (found.size() != before) break;
  }
  if (config.transformer.recompute_granularity != RecomputeGranularity::kFull) {
    const std::optional<RecomputeConfig> way = cheapest_recomputation(config, device, bytes);
    if (way && way->recompute_granularity != RecomputeGranularity::kNone) {
      consider(found, config, device, bytes, recompute_flags(*way), [&way](RunConfig& changed) {
        static_cast<RecomputeConfig&>(changed.transformer) = *way;
      });
    }
  }
  if (device == DeviceType::kCuda && !config.transformer.checkpoint_in_cpu &&
      config.transformer.recompute_granularity == RecomputeGranularity::kFull) {
    consider(found, config, device, bytes, "--checkpoint-in-cpu",
             [](RunConfig& changed) { changed.transformer.checkpoint_in_cpu = true; });
  }
  if (config.parallel.data_parallel_size > 1 && !config.parallel.use_distributed_optimizer) {
    consider(found, config, device, bytes, "--use-distributed-optimizer",
             [](RunConfig& changed) { changed.parallel.use_distributed_optimizer = true; });
  }
  if (config.parallel.data_parallel_size > 1 && config.parallel.pipeline_model_parallel_size == 1) {
    for (int64_t zero = std::max<int64_t>(config.parallel.zero_stage + 1, 2); zero <= 3; ++zero) {
      const size_t before = found.size();
      consider(found, config, device, bytes, fmt::format("--zero-stage {}", zero),
               [zero](RunConfig& changed) {
                 changed.parallel.use_distributed_optimizer = true;
                 changed.parallel.zero_stage = zero;
               });
      if (found.size() != before) break;
    }
  }
  if (config.parallel.num_distributed_optimizer_instances > 1) {
    consider(found, config, device, bytes, "--num-distributed-optimizer-instances 1",
             [](RunConfig& changed) { changed.parallel.num_distributed_optimizer_instances = 1; });
  }
  if (!config.optimizer.optimizer_cpu_offload && device == DeviceType::kCuda) {
    consider(found, config, device, bytes, "--optimizer-cpu-offload",
             [](RunConfig& changed) { changed.optimizer.optimizer_cpu_offload = true; });
  }
  if (config.transformer.params_dtype == DType::kFloat32) {
    consider(found, config, device, bytes, "--bf16", [](RunConfig& changed) {
      changed.transformer.params_dtype = DType::kBFloat16;
      changed.parallel.accumulate_allreduce_grads_in_fp32 = true;
    });
  }
  return found;
}

void expect_to_fit(const RunConfig& config, Device device, int64_t free_bytes) {
  if (free_bytes < 0 || config.training.skip_memory_check) return;
  const RankMemory memory = largest_rank_memory(planned_training(config, device.type));
  const int64_t needs = needed_bytes(memory, device.type);
  if (needs <= free_bytes) return;
  // Recommended settings leave room for libraries and for gaps between blocks.
  const std::vector<std::string> ways = remedies(config, device.type, free_bytes / 100 * 96);
  throw ConfigError(fmt::format(
      "training needs {} of {} at its peak ({}), {} are free; {}, or --skip-memory-check to try "
      "it anyway",
      size_text(needs), device.str(), memory.peak_at, size_text(free_bytes),
      ways.empty() ? "use a smaller model or --seq-length"
                   : fmt::format("use {}", fmt::join(ways, "; or "))));
}

}  // namespace megatron
