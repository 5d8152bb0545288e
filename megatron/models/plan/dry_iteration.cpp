#include "megatron/models/plan/dry_iteration.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "megatron/comm/dry_group.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/matmul.h"
#include "megatron/models/plan/planned_task.h"
#include "megatron/parallel/mesh.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/training/loss_sums.h"
#include "megatron/training/training_state.h"

namespace megatron {
namespace {

// Enough of them to fill the pipeline, and for as many messages on their way as there ever are.
int64_t num_microbatches(const PlannedTraining& t, int64_t stage) {
  const int64_t stages = t.parallel.pipeline_model_parallel_size;
  const bool is_interleaved = t.parallel.virtual_pipeline_model_parallel_size > 1;
  const int64_t most_pending =
      std::max(stages, std::min(t.parallel.zero_bubble_max_pending_backward, t.num_microbatches));
  const int64_t in_flight = t.parallel.enable_zero_bubble ? most_pending : stages - stage;
  return std::min(t.num_microbatches, is_interleaved ? 2 * stages : in_flight + 4);
}

RunConfig run_of(const PlannedTraining& t, int64_t stage) {
  RunConfig run;
  run.transformer = t.transformer;
  run.transformer.perform_initialization = false;
  run.parallel = t.parallel;
  run.parallel.world_size = t.parallel.tensor_model_parallel_size *
                            t.parallel.context_parallel_size * t.parallel.data_parallel_size *
                            t.parallel.pipeline_model_parallel_size;
  run.optimizer = t.optimizer;
  // Schedules need more iterations than the one that is planned, and no memory.
  run.optimizer.lr_decay_style = LrDecayStyle::kConstant;
  run.optimizer.lr_decay_iters = run.optimizer.lr_decay_samples = 0;
  run.optimizer.lr_warmup_fraction.reset();
  run.optimizer.lr_warmup_iters = run.optimizer.lr_warmup_samples = 0;
  run.training.micro_batch_size = t.micro_batch_size;
  run.training.global_batch_size =
      t.micro_batch_size * t.parallel.data_parallel_size * num_microbatches(t, stage);
  run.training.deterministic_mode = t.is_deterministic;
  run.training.train_iters = 1;
  return run;
}

class DryRank {
 public:
  DryRank(const PlannedTraining& t, int64_t stage)
      : config_(run_of(t, stage)),
        device_(t.device),
        stream_(device_.get(), {.is_deterministic = t.is_deterministic}),
        log_(device_.get()),
        task_(planned_task(config_)) {
    const Mesh mesh(config_.parallel);
    const int first = mesh.group_of(0, MeshAxis::kPipeline)[static_cast<size_t>(stage)];
    const int rank = mesh.group_of(first, MeshAxis::kContext).back();
    const auto size = static_cast<int>(config_.parallel.world_size);
    if (!device_.get().is_cpu()) {
      const MemoryScope scope(MemoryCategory::kWorkspace, "scratch of products");
      products_ = Tensor({kernels::kCudaMatmulWorkspaceBytes}, DType::kUInt8, stream_.get());
    }
    state_.emplace(config_, *task_, comm::dry_group(rank, size), stream_.get());
    log_.begin();
    allocator_of(device_.get()).reset_peaks();
  }

  void run_iteration() {
    TrainingState& state = *state_;
    const int64_t count = state.microbatches.num_microbatches();
    state.parameters.zero_grads();
    state.gradients.begin(count);
    state.fp8.quantize_weights();
    const Tensor seed = state.optimizer.loss_seed(count);
    task_->use_loss_seed(seed);
    LossSums losses;
    StageWork work;
    work.forward = [&](const PipelineStep& step, const Activations& activations) -> ChunkOutput {
      const Microbatch batch = moved(task_->get_batch(Split::kTrain, step.chunk));
      MicrobatchOutput made = task_->forward_step(Split::kTrain, step.chunk, batch, activations);
      losses.add(made);
      return {std::move(made.activations), std::move(made.losses)};
    };
    work.backward = [&](const ChunkOutput& output, const Grads& gradients) {
      run_backward(output, gradients, seed);
    };
    work.weight = [](DelayedGradients& gradients) { gradients.run(); };
    const PipelineShape shape = pipeline_shape(config_.parallel, state.parallel.pipeline.rank(),
                                               static_cast<int64_t>(state.chunks.size()), count);
    run_pipeline(training_steps(shape), shape, state.parallel.links, task_->boundaries(),
                 state.stream, work);
    state.fp8.finish_iteration(0);
    losses.reduce(state.parallel.data);
    state.gradients.finish();
    state.optimizer.queue_step(state.scheduler.rates(), {.losses = losses.sums()});
    state.gradients.gather_parameters();
    state.optimizer.finish_step();
  }

  DryIteration counted() const {
    DryIteration all{.memory = log_.peak(),
                     .host_memory = log_.host_peak(),
                     .stats = allocator_of(device_.get()).stats()};
    for (const Module* chunk : state_->chunks) {
      for (const Parameter& parameter : named_parameters(*chunk)) {
        if (parameter.info.role == ParameterRole::kBuffer) continue;
        all.num_parameters += parameter.variable.shape().numel();
      }
    }
    for (const OptimizedParameter& parameter : state_->parameters.parameters()) {
      all.num_trained += parameter.variable.shape().numel();
      if (!parameter.is_layer_matrix) continue;
      all.matrices.push_back({parameter.variable.shape(), parameter.row_parts});
    }
    for (const FlatBuffer& buffer : state_->parameters.buffers()) {
      all.num_flat += buffer.layout.numel;
      if (buffer.is_in_fp8) all.num_in_fp8 += buffer.layout.numel;
      if (buffer.gradient_axes.in(kDataAxes) == kExpertDataAxes) {
        all.num_in_experts += buffer.layout.numel;
      }
    }
    return all;
  }

 private:
  Microbatch moved(const Microbatch& batch) const {
    const TraceRange range("microbatch");
    return batch.to(stream_.get());
  }

  const RunConfig config_;
  const DryDevice device_;
  const OwnedStream stream_;
  MemoryLog log_;
  const std::unique_ptr<TrainTask> task_;
  Tensor products_;  // scratch memory of cuBLASLt, which a GPU keeps
  std::optional<TrainingState> state_;
};

}  // namespace

DryIteration dry_iteration(const PlannedTraining& training, int64_t stage) {
  DryRank rank(training, stage);
  rank.run_iteration();
  // The first iteration teaches which ops use a bucket. From then on its sum or gather overlaps.
  const ParallelConfig& p = training.parallel;
  if (p.overlap_grad_reduce || p.overlap_param_gather || p.zero_stage >= 2) rank.run_iteration();
  return rank.counted();
}

}  // namespace megatron
