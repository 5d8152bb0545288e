#include "megatron/run/cheapest_recomputation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "megatron/run/compared_seconds.h"
#include "megatron/run/memory_check.h"
#include "megatron/training/flops.h"

namespace megatron {
namespace {

class Choice {
 public:
  Choice(const RunConfig& config, DeviceType device, int64_t bytes, const GpuRoof& gpu)
      : config_(config), device_(device), bytes_(bytes), gpu_(gpu) {}

  double seconds_of(const RecomputeConfig& recomputation) {
    take(recomputation);
    return compared_seconds(config_, device_, gpu_);
  }

  std::optional<RecomputeConfig> cheapest() {
    std::optional<RecomputeConfig> best = fewest_layers();
    for (const Timed& one : by_time()) {
      if (best && one.seconds >= seconds_of(*best)) break;
      if (fits(one.recomputation)) return one.recomputation;
    }
    return best;
  }

 private:
  struct Timed {
    RecomputeConfig recomputation;
    double seconds = 0;
  };

  void take(const RecomputeConfig& recomputation) {
    static_cast<RecomputeConfig&>(config_.transformer) = recomputation;
  }

  bool fits(const RecomputeConfig& recomputation) {
    take(recomputation);
    return needed_bytes(largest_rank_memory(planned_training(config_, device_)), device_) <= bytes_;
  }

  bool is_possible(const RecomputeConfig& recomputation) {
    take(recomputation);
    return problems(config_.transformer, config_.parallel.tensor_model_parallel_size).empty();
  }

  // The first layers of each stage, as few as possible.
  std::optional<RecomputeConfig> fewest_layers() {
    RecomputeConfig layers = {.recompute_granularity = RecomputeGranularity::kFull,
                              .recompute_method = RecomputeMethod::kBlock,
                              .recompute_num_layers = config_.transformer.num_layers,
                              .checkpoint_in_cpu = config_.transformer.checkpoint_in_cpu};
    if (!is_possible(layers) || !fits(layers)) return std::nullopt;
    int64_t& enough = layers.recompute_num_layers;
    for (int64_t too_few = 0; enough - too_few > 1;) {
      RecomputeConfig middle = layers;
      middle.recompute_num_layers = (too_few + enough) / 2;
      (fits(middle) ? enough : too_few) = middle.recompute_num_layers;
    }
    return layers;
  }

  // No recomputation, and every set of parts that the model has, the fastest first.
  std::vector<Timed> by_time() {
    std::vector<std::vector<std::string>> sets = {{}};
    const std::vector<const char*> exclusive_parts[] = {
        {"layernorm"}, {"activation", "mlp"}, {"mla_up_proj"}, {"shared_experts", "moe"}};
    for (const std::vector<const char*>& exclusive : exclusive_parts) {
      const size_t count = sets.size();
      for (const char* const part : exclusive) {
        if (!repeats_work(part)) continue;
        for (size_t i = 0; i < count; ++i) {
          std::vector<std::string> with_part = sets[i];
          with_part.emplace_back(part);
          sets.push_back(std::move(with_part));
        }
      }
    }
    std::vector<Timed> all;
    all.reserve(sets.size());
    for (std::vector<std::string>& set : sets) {
      const RecomputeConfig one = set.empty() ? RecomputeConfig() : of_parts(std::move(set));
      all.push_back({one, seconds_of(one)});
    }
    std::ranges::stable_sort(all, {}, &Timed::seconds);
    return all;
  }

  static RecomputeConfig of_parts(std::vector<std::string> modules) {
    return {.recompute_granularity = RecomputeGranularity::kSelective,
            .recompute_modules = std::move(modules)};
  }

  bool repeats_work(const char* part) {
    const RecomputeConfig alone = of_parts({part});
    if (!is_possible(alone)) return false;
    const RecomputedWork work = recomputed_work(config_.transformer);
    return work.products + work.normed + work.activated > 0;
  }

  RunConfig config_;
  DeviceType device_;
  int64_t bytes_;
  const GpuRoof& gpu_;
};

}  // namespace

std::optional<RecomputeConfig> cheapest_recomputation(const RunConfig& config, DeviceType device,
                                                      int64_t bytes, const GpuRoof& gpu) {
  return Choice(config, device, bytes, gpu).cheapest();
}

void FittedRun::apply_to(RunConfig& config) const {
  static_cast<RecomputeConfig&>(config.transformer) = recomputation;
  config.transformer.fp8.keep_transpose_cache = keeps_fp8_transposes;
  config.optimizer.optimizer_cpu_offload = offloads_optimizer;
}

std::string FittedRun::flags() const {
  std::vector<std::string> flags;
  if (offloads_optimizer) flags.emplace_back("--optimizer-cpu-offload");
  if (!keeps_fp8_transposes) flags.emplace_back("--no-keep-fp8-transpose-cache");
  const std::string recomputed = recompute_flags(recomputation);
  if (!recomputed.empty()) flags.push_back(recomputed);
  return fmt::format("{}", fmt::join(flags, " "));
}

std::optional<FittedRun> cheapest_fit(const RunConfig& config, DeviceType device, int64_t bytes,
                                      const GpuRoof& gpu) {
  const bool has_fp8 = config.transformer.fp8.is_on();
  const bool may_offload =
      device != DeviceType::kCpu && config.optimizer.optimizer != OptimizerKind::kMuon;
  for (const bool offloads : {config.optimizer.optimizer_cpu_offload, true}) {
    if (offloads && !config.optimizer.optimizer_cpu_offload && !may_offload) continue;
    std::optional<FittedRun> best;
    double least = 0;
    for (const bool keeps : {config.transformer.fp8.keep_transpose_cache, false}) {
      if (best && !has_fp8) break;
      RunConfig changed = config;
      changed.optimizer.optimizer_cpu_offload = offloads;
      changed.transformer.fp8.keep_transpose_cache = keeps;
      Choice choice(changed, device, bytes, gpu);
      const std::optional<RecomputeConfig> way = choice.cheapest();
      if (!way) continue;
      const double seconds = choice.seconds_of(*way);
      if (best && seconds >= least) continue;
      best = FittedRun{*way, keeps, offloads};
      least = seconds;
    }
    if (best) return best;
  }
  return std::nullopt;
}

std::string recompute_flags(const RecomputeConfig& config) {
  switch (config.recompute_granularity) {
    case RecomputeGranularity::kNone:
      return "";
    case RecomputeGranularity::kSelective:
      return fmt::format("--recompute-granularity selective --recompute-modules {}",
                         fmt::join(config.recompute_modules, " "));
    case RecomputeGranularity::kFull:
      break;
  }
  return fmt::format("--recompute-granularity full --recompute-method {} --recompute-num-layers {}",
                     config.recompute_method == RecomputeMethod::kUniform ? "uniform" : "block",
                     config.recompute_num_layers);
}

}  // namespace megatron
