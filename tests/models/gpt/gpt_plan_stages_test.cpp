// The plan of each pipeline stage against what the allocator counted. Every stage is a thread whose
// device is a CPU of its own number, and so has a pool of its own.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/device/allocator.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/plan/training_plan.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/parallel/pipeline/executor.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "tests/models/gpt/small_config.h"

namespace megatron {
namespace {

constexpr int64_t kMicroBatch = 2;

struct GptPlanStagesVariant {
  const char* name;
  int64_t pp = 2;
  int64_t layers_a_chunk = 0;  // of an interleaved schedule; 0: none
  int64_t microbatches = 5;
  int64_t tp = 1;  // with sequence parallelism, where it is more
  void (*change)(TransformerConfig& config) = [](TransformerConfig&) {};
  bool zero_bubble = false;
  int64_t max_pending = 0;
};
void PrintTo(const GptPlanStagesVariant& variant, std::ostream* out) { *out << variant.name; }

TransformerConfig gpt_plan_stages_config_of(const GptPlanStagesVariant& variant) {
  TransformerConfig c = small_config(8);
  variant.change(c);
  return resolved(c);
}

ParallelConfig parallel_of(const GptPlanStagesVariant& variant) {
  ParallelConfig parallel;
  parallel.tensor_model_parallel_size = variant.tp;
  parallel.sequence_parallel = variant.tp > 1;
  parallel.pipeline_model_parallel_size = variant.pp;
  parallel.world_size = variant.tp * variant.pp;
  parallel.num_layers_per_virtual_pipeline_stage = variant.layers_a_chunk;
  if (variant.layers_a_chunk > 0) {
    parallel.virtual_pipeline_model_parallel_size = 8 / variant.pp / variant.layers_a_chunk;
  }
  parallel.accumulate_allreduce_grads_in_fp32 = true;
  parallel.enable_zero_bubble = variant.zero_bubble;
  parallel.zero_bubble_max_pending_backward = variant.max_pending;
  return parallel;
}

int64_t at(const std::array<int64_t, kNumMemoryCategories>& bytes, MemoryCategory category) {
  return bytes[static_cast<size_t>(category)];
}

// One rank's stage.
class TrainedStage {
 public:
  TrainedStage(const TransformerConfig& config, const ParallelConfig& parallel,
               const comm::Group& world)
      : config_(config),
        parallel_(parallel),
        stream_{Device{DeviceType::kCpu, world.rank() + 1}},
        context_(make_parallel_context(world, parallel)) {
    std::vector<OptimizedParameter> parameters;
    for (const ModelChunk& chunk :
         model_chunks(parallel, config.num_layers, context_.pipeline.rank())) {
      chunks_.push_back(std::make_unique<GptModel>(config, chunk, context_.tensor, stream_));
      initialize(*chunks_.back(), 1);
      for (OptimizedParameter& parameter : optimized_parameters(*chunks_.back(), context_)) {
        parameters.push_back(std::move(parameter));
      }
    }
    flat_ = std::make_unique<FlatParameters>(
        std::move(parameters), FlatParametersOptions{.accumulate_allreduce_grads_in_fp32 = true});
    allocator().empty_cache();
  }

  CachingAllocator& allocator() const { return allocator_of(stream_.device); }
  int stage() const { return context_.pipeline.rank(); }
  int64_t num_parameters() const { return flat_->num_elements(); }

  void train(int64_t num_microbatches) {
    const PipelineShape shape =
        pipeline_shape(parallel_, stage(), static_cast<int64_t>(chunks_.size()), num_microbatches);
    std::vector<ChunkBoundary> boundaries;
    for (const auto& chunk : chunks_)
      boundaries.push_back(chunk->boundary(kMicroBatch, config_.seq_length));
    const Shape ids_shape = {kMicroBatch, config_.seq_length};
    const Tensor mask = full(ids_shape, 1, DType::kFloat32, {});
    const Tensor ids =
        tensor_of(std::vector<int64_t>(static_cast<size_t>(ids_shape.numel()), 3), ids_shape);
    const Tensor seed = full({}, 1, DType::kFloat32, stream_);
    StageWork work;
    work.forward = [&](const PipelineStep& step, const Activations& activations) -> ChunkOutput {
      const GptModel& model = *chunks_[static_cast<size_t>(step.chunk)];
      const Variable hidden =
          model.forward({.tokens = ids, .position_ids = ids}, activations, random_).back();
      if (!model.chunk().has_head) return {{hidden}};
      return {
          .activations = {},
          .losses = {token_loss(model, hidden, {.labels = ids, .loss_mask = mask, .seed = seed})}};
    };
    work.backward = [&](const ChunkOutput& output, const Grads& gradients) {
      run_backward(output, gradients, seed);
    };
    work.weight = [](DelayedGradients& gradients) { gradients.run(); };
    flat_->zero_grads();
    run_pipeline(training_steps(shape), shape, context_.links, boundaries, stream_, work);
  }

 private:
  const TransformerConfig& config_;
  const ParallelConfig& parallel_;
  Stream stream_;
  ParallelContext context_;
  std::vector<std::unique_ptr<GptModel>> chunks_;
  std::unique_ptr<FlatParameters> flat_;
  RandomState random_{1};
};

class GptPlanStagesTest : public testing::TestWithParam<GptPlanStagesVariant> {};

TEST_P(GptPlanStagesTest, StagesTakeWhatIsPlanned) {
  const GptPlanStagesVariant& variant = GetParam();
  const TransformerConfig config = gpt_plan_stages_config_of(variant);
  const ParallelConfig parallel = parallel_of(variant);
  const OptimizerConfig adam;
  const PlannedTraining training{.transformer = config,
                                 .parallel = parallel,
                                 .optimizer = adam,
                                 .micro_batch_size = kMicroBatch,
                                 .num_microbatches = variant.microbatches};
  comm::run_ranks(static_cast<int>(parallel.world_size), [&](const comm::Group& world) {
    TrainedStage stage(config, parallel, world);
    stage.allocator().reset_peaks();
    stage.train(variant.microbatches);
    const MemoryStats stats = stage.allocator().stats();
    const DryIteration plan = dry_iteration(training, stage.stage());
    EXPECT_EQ(plan.num_parameters, stage.num_parameters());
    for (const MemoryCategory category :
         {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kActivations}) {
      const auto took = static_cast<double>(at(stats.peak_by_category, category));
      EXPECT_NEAR(static_cast<double>(at(plan.stats.peak_by_category, category)), took, 0.03 * took)
          << name_of(category) << " of stage " << stage.stage() << ", peak at " << plan.memory.when;
    }
  });
}

const GptPlanStagesVariant kGptPlanStagesVariants[] = {
    {"two_stages"},
    {"four_stages", 4},
    {"four_stages_few_microbatches", 4, 0, 2},
    {"one_microbatch", 2, 0, 1},
    {"interleaved", 4, 1, 8},
    {"interleaved_by_two", 2, 1, 4},
    {"interleaved_few_microbatches", 4, 1, 4},
    {"tensor_ranks", 2, 0, 5, 2},
    {"untied", 2, 0, 5, 1,
     [](TransformerConfig& c) { c.untie_embeddings_and_output_weights = true; }},
    {"bf16", 4, 0, 5, 1, [](TransformerConfig& c) { c.params_dtype = DType::kBFloat16; }},
    {"recomputed", 4, 0, 5, 1,
     [](TransformerConfig& c) {
       c.recompute_granularity = RecomputeGranularity::kFull;
       c.recompute_method = RecomputeMethod::kUniform;
       c.recompute_num_layers = 1;
     }},
    {"zero_bubble", 4, 0, 9, 1, [](TransformerConfig&) {}, true},
    {"zero_bubble_more_pending", 4, 0, 12, 1, [](TransformerConfig&) {}, true, 7},
    {"zero_bubble_few_microbatches", 4, 0, 2, 1, [](TransformerConfig&) {}, true},
    {"zero_bubble_interleaved", 4, 1, 8, 1, [](TransformerConfig&) {}, true},
    {"zero_bubble_tensor_ranks", 2, 0, 5, 2, [](TransformerConfig&) {}, true},
    {"zero_bubble_recomputed", 4, 0, 9, 1,
     [](TransformerConfig& c) {
       c.recompute_granularity = RecomputeGranularity::kFull;
       c.recompute_method = RecomputeMethod::kUniform;
       c.recompute_num_layers = 1;
     },
     true},
    {"recomputed_in_part", 2, 0, 5, 1,
     [](TransformerConfig& c) {
       c.recompute_granularity = RecomputeGranularity::kFull;
       c.recompute_method = RecomputeMethod::kBlock;
       c.recompute_num_layers = 2;
     }},
    {"recomputed_interleaved", 4, 1, 8, 1,
     [](TransformerConfig& c) {
       c.recompute_granularity = RecomputeGranularity::kFull;
       c.recompute_method = RecomputeMethod::kUniform;
       c.recompute_num_layers = 1;
     }},
};
INSTANTIATE_TEST_SUITE_P(Variants, GptPlanStagesTest, testing::ValuesIn(kGptPlanStagesVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

}  // namespace
}  // namespace megatron
