#include "megatron/models/plan/training_plan.h"

#include <algorithm>
#include <utility>

#include "megatron/models/model_specs.h"
#include "megatron/models/plan/planned_stage.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {
namespace {

int64_t sum_of(const std::vector<MemoryUse>& rows) {
  int64_t sum = 0;
  for (const MemoryUse& row : rows) sum += row.bytes;
  return sum;
}

// The maximum number of forward passes of the rank's chunks that wait for their backward pass.
double microbatches_in_flight(const PlannedTraining& t, int64_t stage) {
  const PipelineShape shape =
      pipeline_shape(t.parallel, stage, num_model_chunks(t.parallel, t.transformer.num_layers),
                     t.num_microbatches);
  int64_t now = 0;
  int64_t most = 0;
  for (const PipelineStep& step : training_steps(shape)) {
    if (step.pass == Pass::kForward) ++now;
    if (step.pass == Pass::kBackward) --now;
    most = std::max(most, now);
  }
  return static_cast<double>(most) / static_cast<double>(shape.chunks);
}

}  // namespace

int64_t RankMemory::bytes(MemoryCategory category) const {
  int64_t sum = 0;
  for (const MemoryUse& row : rows) sum += row.category == category ? row.bytes : 0;
  return sum;
}
int64_t RankMemory::total_bytes() const { return sum_of(rows); }
int64_t RankMemory::host_bytes() const { return sum_of(host_rows); }

RankMemory rank_memory(const PlannedTraining& t, int64_t stage, const DryIteration& dry) {
  return {.num_parameters = dry.num_parameters,
          .num_layers = stage_of(t, stage).num_layers,
          .microbatches_in_flight = microbatches_in_flight(t, stage),
          .rows = dry.memory.uses,
          .peak_at = dry.memory.when,
          .host_rows = dry.host_memory.uses};
}

RankMemory largest_rank_memory(const PlannedTraining& t) {
  RankMemory largest = rank_memory(t, 0);
  for (int64_t stage = 1; stage < t.num_stages(); ++stage) {
    RankMemory memory = rank_memory(t, stage);
    if (memory.total_bytes() > largest.total_bytes()) largest = std::move(memory);
  }
  return largest;
}

int64_t num_model_parameters(const TransformerConfig& config) {
  int64_t sum = 0;
  for (const Parameter& spec : model_specs(config)) {
    if (spec.info.role != ParameterRole::kBuffer) sum += spec.shape.numel();
  }
  return sum;
}

}  // namespace megatron
