#include "megatron/training/microbatch_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/staging.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

bool is_alike(const Tensor* a, const Tensor* b) {
  if (!a->defined() || !b->defined()) return a->defined() == b->defined();
  return a->shape() == b->shape() && a->dtype() == b->dtype();
}

// The counts of tokens stay on the device, unless a part of the mixture needs them on the host.
std::optional<std::string> why_no_graph_of_experts(const RunConfig& config) {
  const TransformerConfig& c = config.transformer;
  if (!c.has_experts()) return std::nullopt;
  if (config.parallel.expert_model_parallel_size > 1) {
    return fmt::format("--expert-model-parallel-size {}: the host reads how many tokens came",
                       config.parallel.expert_model_parallel_size);
  }
  if (c.add_bias_linear) return "biases of experts: the host reads how many tokens each has";
  for (const std::string& type : c.moe_router_load_balancing_type) {
    if (type == "global_aux_loss") {
      return "--moe-router-load-balancing-type global_aux_loss: the host counts microbatches";
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_no_graph(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.pipeline_model_parallel_size > 1) {
    return fmt::format("--pipeline-model-parallel-size {}: microbatches wait for other stages",
                       parallel.pipeline_model_parallel_size);
  }
  if (parallel.tensor_model_parallel_size > 1) {
    return fmt::format("--tensor-model-parallel-size {}: layers have collectives",
                       parallel.tensor_model_parallel_size);
  }
  if (parallel.context_parallel_size > 1) {
    return fmt::format("--context-parallel-size {}: layers have collectives",
                       parallel.context_parallel_size);
  }
  if (parallel.zero_stage >= 2 && num_shards(parallel) > 1) {
    return fmt::format("--zero-stage {}: passes sum gradients", parallel.zero_stage);
  }
  if (config.transformer.stores_inputs_on_host()) {
    return "--checkpoint-in-cpu: inputs of layers are copied to the host and back";
  }
  if (config.transformer.cpu_offloading_num_layers > 0) {
    return fmt::format(
        "--cpu-offloading-num-layers {}: activations are copied to the host and back",
        config.transformer.cpu_offloading_num_layers);
  }
  if (auto why = why_no_graph_of_experts(config)) return why;
  if (config.training.curriculum.is_on()) {
    return "curriculum_learning: the lengths of sequences change";
  }
  if (config.training.timing_log_level >= 2) {
    return fmt::format("--timing-log-level {}: forward and backward passes are timed one by one",
                       config.training.timing_log_level);
  }
  return std::nullopt;
}

MicrobatchGraph::MicrobatchGraph(TrainTask& task, RandomState& random, Stream stream)
    : task_(task), random_(random), stream_(stream), pool_(allocator_of(stream.device)) {}

MicrobatchOutput MicrobatchGraph::run(const Microbatch& batch, int64_t first_sample,
                                      const Tensor& seed, bool is_quiet) {
  ++num_run_;
  const bool may_replay = is_quiet && !is_tracing();
  if (may_replay && !graph_ && !is_refused_ && num_run_ > kWarmup) record(batch, seed);
  if (may_replay && graph_ && fits(batch)) {
    fill(batch, first_sample, seed);
    graph_->launch();
    random_.set_first_sample(first_sample);
    return recorded_;
  }
  random_.set_first_sample(first_sample);
  const PoolScope scope(&pool_);
  return both_passes(batch.to(stream_), seed);
}

MicrobatchOutput MicrobatchGraph::both_passes(const Microbatch& batch, const Tensor& seed) {
  const PoolScope scope(&pool_);
  task_.use_loss_seed(seed);
  MicrobatchOutput output = task_.forward_step(Split::kTrain, 0, batch, {});
  run_backward({.activations = {}, .losses = std::move(output.losses)}, {}, seed);
  return {.logged = std::move(output.logged), .weight = std::move(output.weight)};
}

void MicrobatchGraph::record(const Microbatch& batch, const Tensor& seed) {
  try {
    pool_.keep();
    batch_ =
        batch.mapped([&](const Tensor& one) { return Tensor(one.shape(), one.dtype(), stream_); });
    first_sample_ = Tensor({1}, DType::kInt64, stream_);
    seed_ = empty_like(seed);
    graph_.emplace(stream_, [this] {
      random_.set_first_sample_at(std::as_const(first_sample_).view().as<int64_t>());
      recorded_ = both_passes(batch_, seed_);
    });
  } catch (const DeviceError& error) {
    is_refused_ = true;
    batch_ = {};
    warn(fmt::format("--cuda-graph: cannot record a microbatch, training continues without: {}",
                     error.what()));
  }
}

bool MicrobatchGraph::fits(const Microbatch& batch) const {
  return std::ranges::equal(batch.tensors(), batch_.tensors(), is_alike);
}

void MicrobatchGraph::fill(const Microbatch& batch, int64_t first_sample, const Tensor& seed) {
  const std::vector<Tensor*> to = batch_.tensors();
  const std::vector<Tensor*> from = batch.tensors();
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i]->defined()) continue;
    upload_bytes(to[i]->view().data, from[i]->view().data, from[i]->bytes(), stream_);
  }
  upload_bytes(first_sample_.view().data, &first_sample, first_sample_.bytes(), stream_);
  copy_into(seed_, seed);
}

}  // namespace megatron
