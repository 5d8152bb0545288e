#include "megatron/training/training_state.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/device/allocator.h"
#include "megatron/nn/deferred_memory.h"
#include "megatron/optim/fp8_buckets.h"
#include "megatron/parallel/pipeline/executor.h"

namespace megatron {
namespace {

// True if a rank keeps only a share of the parameters.
bool divides_parameters(const RunConfig& config) {
  return config.parallel.zero_stage >= 3 && num_shards(config.parallel) > 1;
}

void freeze_all_but_adapters(const Module& module) {
  for (Parameter& parameter : named_parameters(module)) {
    if (!parameter.info.is_adapter) parameter.variable.make_constant();
  }
}

// The optimizer gives parameters that are trained their memory.
void give_memory_to_constants(const Module& module) {
  const MemoryScope scope(MemoryCategory::kParameters, "parameters that are not trained");
  for (Parameter& parameter : named_parameters(module)) {
    Tensor data = parameter.variable.data();
    if (!parameter.variable.requires_grad() && !data.has_memory()) data.take_memory();
  }
}

std::vector<const Module*> built(const RunConfig& config, TrainTask& task,
                                 const ParallelContext& parallel, Stream stream,
                                 RandomState& random) {
  std::optional<DeferMemory> deferred;
  if (divides_parameters(config)) deferred.emplace();
  std::vector<const Module*> chunks =
      task.build_model({.parallel = parallel, .stream = stream, .random = random});
  deferred.reset();
  open_links(parallel.links, parallel.pipeline.rank(), parallel.pipeline.size(), chunks.size() > 1,
             stream);
  if (config.transformer.lora_rank > 0) {
    for (const Module* chunk : chunks) freeze_all_but_adapters(*chunk);
  }
  for (const Module* chunk : chunks) give_memory_to_constants(*chunk);
  if (!config.transformer.perform_initialization) return chunks;
  for (const Module* chunk : chunks) {
    initialize(*chunk, static_cast<uint64_t>(config.training.seed));
  }
  return chunks;
}

// True if sums over the gradients run over all ranks: ranks that shard a state share one model, and
// the ranks of one copy of the experts belong to several copies of the dense layers.
bool sums_over_world(const RunConfig& config, const ParallelContext& parallel) {
  return config.parallel.use_distributed_optimizer || parallel.mesh.has_expert_axes();
}

std::vector<OptimizedParameter> parameters_of(const RunConfig& config, const TrainTask& task,
                                              const std::vector<const Module*>& chunks,
                                              const ParallelContext& parallel) {
  std::vector<OptimizedParameter> all;
  for (const Module* chunk : chunks) {
    for (OptimizedParameter& parameter : optimized_parameters(*chunk, parallel)) {
      task.adjust_parameter(parameter);
      // The sum over the world counts once what several ranks update alike.
      if (sums_over_world(config, parallel)) {
        const MeshAxes copies =
            update_axes(parameter.gradient_axes, config.parallel.use_distributed_optimizer);
        parameter.counts_in_norm = parameter.counts_in_norm && parallel.is_first_along(copies);
      }
      all.push_back(std::move(parameter));
    }
  }
  if (config.transformer.fp8.param_gather) find_fp8_layers(all, chunks);
  return all;
}

FlatParametersOptions flat_options(const RunConfig& run, const std::vector<const Module*>& chunks) {
  const ParallelConfig& config = run.parallel;
  FlatParametersOptions options;
  if (divides_parameters(run) && run.transformer.perform_initialization) {
    std::map<std::string, ParameterInfo> infos;
    for (const Module* chunk : chunks) {
      for (const Parameter& named : named_parameters(*chunk)) infos[named.name] = named.info;
    }
    options.first_value = [infos = std::move(infos), seed = run.training.seed](
                              const OptimizedParameter& parameter, Tensor data) {
      first_value(parameter.name, infos.at(parameter.name), std::move(data),
                  static_cast<uint64_t>(seed));
    };
  }
  options.separates_matrices = run.optimizer.optimizer == OptimizerKind::kMuon;
  options.divides_gradients = config.zero_stage >= 2;
  options.divides_parameters = config.zero_stage >= 3;
  // 0: one bucket if nothing overlaps.
  const bool has_buckets = config.overlap_grad_reduce || options.divides_gradients;
  options.layout.bucket_size = has_buckets ? bucket_size(config) : 0;
  options.accumulate_allreduce_grads_in_fp32 = config.accumulate_allreduce_grads_in_fp32;
  options.divides_state = config.use_distributed_optimizer;
  return options;
}

FlatParameters flat(std::vector<OptimizedParameter> parameters,
                    const FlatParametersOptions& options, const ParallelContext& parallel,
                    Device device) {
  FlatParameters made(std::move(parameters), options, parallel);
  // Later allocations do not fit the blocks that the flat buffers replaced.
  allocator_of(device).empty_cache();
  return made;
}

// Null if no weights are gathered in FP8.
std::unique_ptr<Fp8Gather> fp8_gather(const RunConfig& config, const FlatParameters& parameters,
                                      Stream stream) {
  std::vector<Fp8Bucket> buckets = fp8_buckets(parameters);
  if (buckets.empty()) return nullptr;
  return std::make_unique<Fp8Gather>(std::move(buckets), config.parallel.overlap_param_gather,
                                     stream);
}

// Sums numbers over the ranks that update one copy of the model.
SumOverModel sum_over_model(const RunConfig& config, const ParallelContext& parallel) {
  const bool is_whole = sums_over_world(config, parallel);
  const comm::Group group = is_whole ? parallel.world : parallel.model;
  // Each copy of the model has a sum of its own. NCCL may add up in another order on other GPUs,
  // and copies must clip alike to stay equal.
  const bool may_differ = !is_whole && group.size() > 1;
  const comm::Group copies = may_differ ? parallel.data : comm::Group();
  return [group, copies](TensorView numbers, Stream stream) {
    comm::all_reduce(numbers, comm::Reduce::kSum, group, stream);
    if (copies.size() > 1) comm::broadcast(numbers, 0, copies, stream);
  };
}

TrainingLength length_of(const RunConfig& run) {
  const TrainingConfig& config = run.training;
  TrainingLength length{.train_iters = config.train_iters,
                        .train_samples = config.train_samples,
                        .global_batch_size = config.global_batch_size};
  if (!run.optimizer.lr_decays_by_tokens || !config.curriculum.is_on()) return length;
  length.tokens_of = [curriculum = Curriculum(config.curriculum),
                      batch = config.global_batch_size](double samples) {
    const auto whole = static_cast<int64_t>(samples / static_cast<double>(batch));
    const double rest = samples - static_cast<double>(whole * batch);
    return static_cast<double>(curriculum.tokens_after(whole) * batch) +
           rest * static_cast<double>(curriculum.length_at(whole + 1));
  };
  return length;
}

}  // namespace

TrainingState::TrainingState(const RunConfig& config, TrainTask& task, const comm::Group& world,
                             Stream on)
    : parallel(make_parallel_context(world, config.parallel)),
      stream(on),
      random(static_cast<uint64_t>(config.training.seed)),
      chunks(built(config, task, parallel, stream, random)),
      parameters(flat(parameters_of(config, task, chunks, parallel), flat_options(config, chunks),
                      parallel, stream.device)),
      fp8(chunks, config.transformer.fp8, parallel, stream, fp8_gather(config, parameters, stream)),
      routers(chunks, config.transformer,
              config.transformer.num_layers + config.transformer.mtp_num_layers, parallel, stream),
      gradients(parameters, parallel.pipeline,
                {.overlap_grad_reduce = config.parallel.overlap_grad_reduce,
                 .overlap_param_gather = config.parallel.overlap_param_gather}),
      optimizer(parameters, config.optimizer, sum_over_model(config, parallel)),
      scheduler(make_parameter_scheduler(config.optimizer, length_of(config))),
      microbatches(
          make_microbatch_calculator(config.training, config.parallel.data_parallel_size)) {}

}  // namespace megatron
