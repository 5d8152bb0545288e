#include "megatron/models/plan/training_plan.h"

#include <algorithm>
#include <utility>

#include "megatron/kernels/optimizer.h"
#include "megatron/models/plan/planned_activations.h"
#include "megatron/models/plan/planned_parameters.h"
#include "megatron/models/plan/planned_stage.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/optim/host_update.h"
#include "megatron/optim/update_rule.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

int64_t RankMemory::bytes(MemoryCategory category) const {
  int64_t sum = 0;
  for (const PlannedRow& row : rows) sum += row.category == category ? row.bytes : 0;
  return sum;
}

int64_t RankMemory::total_bytes() const {
  int64_t sum = 0;
  for (const PlannedRow& row : rows) sum += row.bytes;
  return sum;
}

int64_t RankMemory::host_bytes() const { return megatron::total_bytes(host_rows); }

RankMemory rank_memory(const PlannedTraining& t, int64_t stage) {
  const TransformerConfig& c = t.transformer;
  const PlannedStage held = stage_of(t, stage);
  const std::vector<FlatItem> items = stage_parameters(t, stage);
  const std::vector<FlatItem> constants = stage_parameters(t, stage, false);
  const FlatLayout layout = stage_layout(t, items);
  const int64_t numel = layout.numel;
  const int64_t num_constants = flat_layout(constants, {}).numel;
  RankMemory memory;
  for (const FlatItem& item : items) memory.num_parameters += item.numel;
  for (const FlatItem& item : constants) memory.num_parameters += item.numel;
  memory.num_layers = held.num_layers;

  const MicrobatchSizes sizes = microbatch_sizes(t);
  const bool is_16_bit = c.params_dtype != DType::kFloat32;
  const DType grad_dtype =
      t.parallel.accumulate_allreduce_grads_in_fp32 ? DType::kFloat32 : c.params_dtype;
  const int64_t shards = num_shards(t);
  const auto add = [&memory](MemoryCategory category, std::string what, int64_t bytes) {
    if (bytes > 0) memory.rows.push_back({category, std::move(what), bytes});
  };
  const int64_t shard = (numel + shards - 1) / shards;
  const int64_t in_fp8 = num_gathered_in_fp8(t, stage);
  add(MemoryCategory::kParameters, "parameters",
      sizes.block(divides_parameters(t) ? shard : numel - in_fp8 + (in_fp8 + shards - 1) / shards,
                  c.params_dtype));
  if (divides_parameters(t)) {  // two used before, one in use, one gathered ahead
    add(MemoryCategory::kParameters, "gathered parameters",
        sizes.block(largest_buckets(layout, 4), c.params_dtype));
  }
  add(MemoryCategory::kParameters, "parameters that are not trained",
      sizes.block(num_constants, c.params_dtype));
  add(MemoryCategory::kParameters, "weights and scales in FP8", fp8_bytes(t, stage));
  add(MemoryCategory::kGradients, "main gradients",
      sizes.block(divides_gradients(t) ? shard : numel, grad_dtype));
  if (divides_gradients(t)) {
    add(MemoryCategory::kGradients, "gradients that are not summed yet",
        sizes.block(whole_gradients(t, layout), grad_dtype));
  }
  const OptimizerConfig& o = t.optimizer;
  // With offload, the host of a GPU has the state.
  const bool is_on_host = o.optimizer_cpu_offload && t.device == DeviceType::kCuda;
  const auto block = [&](int64_t elements, DType dtype) {
    if (elements == 0) return int64_t{0};
    return is_on_host ? MemorySource::cpu().block_bytes(elements * size_of(dtype))
                      : sizes.block(elements, dtype);
  };
  const auto add_state = [&](std::string what, int64_t bytes) {
    if (!is_on_host) {
      add(MemoryCategory::kOptimizer, std::move(what), bytes);
    } else if (bytes > 0) {
      memory.host_rows.push_back({std::move(what), bytes});
    }
  };
  int64_t matrices = 0;
  if (o.optimizer == OptimizerKind::kMuon) {
    matrices = (num_matrix_elements(t, stage) + shards - 1) / shards;
  }
  if (keeps_remainders(o, c.params_dtype)) {
    add_state("main parameters beyond bf16", block(shard - matrices, DType::kInt16));
    add_state("fp32 main parameters of matrices", block(matrices, DType::kFloat32));
  } else if (is_16_bit || o.optimizer_cpu_offload) {
    add_state("fp32 main parameters", block(shard, DType::kFloat32));
  }
  const auto state = [&](const UpdateRule& rule, int64_t elements) {
    int64_t bytes = 0;
    for (const StateSpec& spec : rule.state()) {
      bytes += block(kernels::moment_bytes(elements, spec.dtype), DType::kUInt8);
    }
    return bytes;
  };
  add_state("moments", state(*make_element_rule(o), shard - matrices));
  add_state("momentum of matrices", block(matrices, DType::kFloat32));
  if (is_on_host) {
    add_state("gradients and parameters on their way",
              HostUpdate::pinned_bytes(std::min(shard, kHostPiece)));
  }

  ActivationMemory activations = activation_memory(t, stage);
  memory.rows.insert(memory.rows.end(), activations.rows.begin(), activations.rows.end());
  memory.peak_at = std::move(activations.peak_at);
  memory.microbatches_in_flight = activations.microbatches_in_flight;
  add(MemoryCategory::kWorkspace, "scratch of kernels", activations.workspace);
  if (activations.inputs_on_host > 0) {
    memory.host_rows.push_back({"inputs of recomputed layers", activations.inputs_on_host});
  }
  return memory;
}

RankMemory largest_rank_memory(const PlannedTraining& t) {
  RankMemory largest = rank_memory(t, 0);
  for (int64_t stage = 1; stage < num_stages(t); ++stage) {
    RankMemory memory = rank_memory(t, stage);
    if (memory.total_bytes() > largest.total_bytes()) largest = std::move(memory);
  }
  return largest;
}

int64_t num_model_parameters(const TransformerConfig& config) {
  int64_t sum = 0;
  if (config.kind == ModelKind::kT5) {
    for (const ParameterSpec& spec : t5_specs(config)) sum += spec.shape.numel();
    return sum;
  }
  for (const auto& [spec, count, is_in_layer] :
       parameters_of(config, whole_model(config.num_layers))) {
    sum += count * spec.shape.numel();
  }
  return sum;
}

int64_t largest_micro_batch_size(PlannedTraining training, int64_t bytes, int64_t at_most) {
  for (int64_t size = at_most; size >= 1; --size) {
    training.micro_batch_size = size;
    if (largest_rank_memory(training).total_bytes() <= bytes) return size;
  }
  return 0;
}

double pipeline_bubble(const PlannedTraining& t) {
  return bubble_fraction({.stage = 0,
                          .stages = num_stages(t),
                          .chunks = num_model_chunks(t.parallel, t.transformer.num_layers),
                          .microbatches = t.num_microbatches});
}

}  // namespace megatron
