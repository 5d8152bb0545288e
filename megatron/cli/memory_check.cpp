#include "megatron/cli/memory_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/core/error.h"

namespace megatron::cli {
namespace {

// A variation of the run; nothing to say when it does not fit.
template <class Change>
void consider(std::vector<std::string>& remedies, const TrainingArgs& args, DeviceType device,
              int64_t bytes, const std::string& flags, const Change& change) {
  TrainingArgs changed = args;
  change(changed);
  const int64_t needs = largest_rank_memory(planned_training(changed, device)).total_bytes();
  if (needs <= bytes) {
    remedies.push_back(fmt::format("{} (needs {})", flags, size_text(needs)));
  }
}

void recompute_all(TrainingArgs& args, RecomputeMethod method, int64_t num_layers) {
  args.transformer.recompute_granularity = RecomputeGranularity::kFull;
  args.transformer.recompute_method = method;
  args.transformer.recompute_num_layers = num_layers;
}

// The fewest layers whose recomputation is enough; 0 when all are not.
int64_t fewest_recomputed_layers(const TrainingArgs& args, DeviceType device, int64_t bytes) {
  TrainingArgs changed = args;
  for (int64_t layers = 1; layers <= args.transformer.num_layers; ++layers) {
    recompute_all(changed, RecomputeMethod::kBlock, layers);
    const RankMemory memory = largest_rank_memory(planned_training(changed, device));
    if (memory.total_bytes() <= bytes) return layers;
  }
  return 0;
}

}  // namespace

std::string size_text(int64_t bytes) {
  if (bytes < (1 << 30)) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

PlannedTraining planned_training(const TrainingArgs& args, DeviceType device) {
  const int64_t a_step = args.training.micro_batch_size * args.parallel.data_parallel_size;
  return {.transformer = args.transformer,
          .parallel = args.parallel,
          .optimizer = args.optimizer,
          .micro_batch_size = args.training.micro_batch_size,
          .num_microbatches = std::max<int64_t>(1, args.training.global_batch_size / a_step),
          .device = device,
          .is_deterministic = args.training.deterministic_mode};
}

std::vector<std::string> summary_of(const RankMemory& memory) {
  std::vector<std::string> parts;
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    parts.push_back(fmt::format("{} {}", name_of(category), size_text(memory.bytes(category))));
  }
  return {fmt::format("> memory plan: {}", fmt::join(parts, ", ")),
          fmt::format("> memory plan: {} at the peak, {}", size_text(memory.total_bytes()),
                      memory.peak_at)};
}

std::vector<std::string> remedies(const TrainingArgs& args, DeviceType device, int64_t bytes) {
  std::vector<std::string> found;
  const int64_t micro = args.training.micro_batch_size;
  // Of sizes that the global batch allows.
  for (int64_t size = micro - 1; size >= 1; --size) {
    if (args.training.global_batch_size % (size * args.parallel.data_parallel_size) != 0) continue;
    const size_t before = found.size();
    consider(found, args, device, bytes, fmt::format("--micro-batch-size {}", size),
             [size](TrainingArgs& changed) { changed.training.micro_batch_size = size; });
    if (found.size() != before) break;
  }
  if (args.transformer.recompute_granularity != RecomputeGranularity::kFull) {
    const int64_t layers = fewest_recomputed_layers(args, device, bytes);
    if (layers > 0) {
      consider(found, args, device, bytes,
               fmt::format("--recompute-granularity full --recompute-method block "
                           "--recompute-num-layers {}",
                           layers),
               [layers](TrainingArgs& changed) {
                 recompute_all(changed, RecomputeMethod::kBlock, layers);
               });
    }
  }
  if (args.parallel.data_parallel_size > 1 && !args.parallel.use_distributed_optimizer) {
    consider(found, args, device, bytes, "--use-distributed-optimizer",
             [](TrainingArgs& changed) { changed.parallel.use_distributed_optimizer = true; });
  }
  if (args.transformer.params_dtype == DType::kFloat32) {
    consider(found, args, device, bytes, "--bf16", [](TrainingArgs& changed) {
      changed.transformer.params_dtype = DType::kBFloat16;
      changed.parallel.accumulate_allreduce_grads_in_fp32 = true;
    });
  }
  return found;
}

void expect_to_fit(const TrainingArgs& args, Device device, int64_t free_bytes) {
  if (free_bytes < 0 || args.training.skip_memory_check) return;
  const RankMemory memory = largest_rank_memory(planned_training(args, device.type));
  if (memory.total_bytes() <= free_bytes) return;
  // What is recommended leaves room for the libraries and for gaps between blocks.
  const std::vector<std::string> ways = remedies(args, device.type, free_bytes / 100 * 96);
  throw ConfigError(fmt::format(
      "training needs {} of {} at its peak ({}), {} are free; {}, or --skip-memory-check to try "
      "it anyway",
      size_text(memory.total_bytes()), device.str(), memory.peak_at, size_text(free_bytes),
      ways.empty() ? "use a smaller model or --seq-length"
                   : fmt::format("use {}", fmt::join(ways, "; or "))));
}

}  // namespace megatron::cli
