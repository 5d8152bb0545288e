#include "megatron/training/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "megatron/checkpoint/directory.h"
#include "megatron/comm/threads.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/run/start.h"
#include "megatron/run/training_run.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/trainer.h"
#include "tests/run/mock_gpt.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A way to spread a GPT over ranks, and its precision.
struct ReplicaRun {
  const char* name;
  int ranks;
  std::function<void(RunConfig&)> change;
};

void PrintTo(const ReplicaRun& run, std::ostream* os) { *os << run.name; }

void use_bf16(RunConfig& config) {
  config.optimizer.bf16 = true;
  config.optimizer.params_dtype = DType::kBFloat16;
  config.transformer.params_dtype = DType::kBFloat16;
}

void use_fp16(RunConfig& config) {
  config.optimizer.fp16 = true;
  config.optimizer.params_dtype = DType::kFloat16;
  config.transformer.params_dtype = DType::kFloat16;
  config.optimizer.initial_loss_scale = 1024;
}

void use_fp8(RunConfig& config) {
  use_bf16(config);
  config.transformer.fp8.format = Fp8Format::kHybrid;
}

RunConfig replica_gpt() {
  RunConfig config = MockGpt{.num_layers = 2,
                             .hidden_size = 32,
                             .num_attention_heads = 4,
                             .seq_length = 16,
                             .vocab_size = 60}
                         .config();
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = 8;
  config.training.log_interval = 1;
  config.training.check_weight_hash_across_dp_replicas_interval = 1;
  return config;
}

std::vector<ReplicaRun> replica_runs() {
  const auto data_parallel = [](RunConfig&) {};
  return {
      {"DataParallel", 2, data_parallel},
      {"DataParallelOfThree", 3, [](RunConfig& c) { c.training.global_batch_size = 6; }},
      {"DataParallelInBf16", 2, use_bf16},
      {"DataParallelInFp16", 2, use_fp16},
      {"DataParallelInFp8", 2, use_fp8},
      {"PreciseMoments", 4,
       [](RunConfig& c) {
         use_bf16(c);
         c.parallel.tensor_model_parallel_size = 2;
         c.parallel.use_distributed_optimizer = true;
         c.optimizer.use_precision_aware_optimizer = true;
         c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = DType::kFloat8E4M3;
       }},
      {"Offload", 2,
       [](RunConfig& c) {
         use_bf16(c);
         c.optimizer.optimizer_cpu_offload = true;
       }},
      {"Tensor", 2, [](RunConfig& c) { c.parallel.tensor_model_parallel_size = 2; }},
      {"SequenceParallel", 4,
       [](RunConfig& c) {
         use_bf16(c);
         c.parallel.tensor_model_parallel_size = 2;
         c.parallel.sequence_parallel = true;
       }},
      {"Pipeline", 2, [](RunConfig& c) { c.parallel.pipeline_model_parallel_size = 2; }},
      {"Context", 2,
       [](RunConfig& c) {
         use_bf16(c);
         c.parallel.context_parallel_size = 2;
       }},
      {"DistributedOptimizer", 2,
       [](RunConfig& c) {
         use_bf16(c);
         c.parallel.use_distributed_optimizer = true;
         c.parallel.overlap_grad_reduce = c.parallel.overlap_param_gather = true;
         c.parallel.ddp_bucket_size = 5000;
       }},
      {"TensorPipelineAndDistributed", 8,
       [](RunConfig& c) {
         c.parallel.tensor_model_parallel_size = c.parallel.pipeline_model_parallel_size = 2;
         c.parallel.sequence_parallel = c.parallel.use_distributed_optimizer = true;
       }},
      {"Zero2", 4,
       [](RunConfig& c) {
         c.parallel.tensor_model_parallel_size = c.parallel.zero_stage = 2;
         c.parallel.ddp_bucket_size = 5000;
       }},
      {"Zero3", 4,
       [](RunConfig& c) {
         use_bf16(c);
         c.parallel.tensor_model_parallel_size = 2;
         c.parallel.zero_stage = 3;
         c.parallel.ddp_bucket_size = 5000;
       }},
      {"Instances", 8,
       [](RunConfig& c) {
         use_bf16(c);
         c.parallel.tensor_model_parallel_size = 2;
         c.parallel.use_distributed_optimizer = true;
         c.parallel.num_distributed_optimizer_instances = 2;
       }},
      {"InstancesOfZero3", 4,
       [](RunConfig& c) {
         c.parallel.zero_stage = 3;
         c.parallel.num_distributed_optimizer_instances = 2;
         c.parallel.ddp_bucket_size = 5000;
       }},
      {"InstancesOfOneRank", 2,
       [](RunConfig& c) {
         use_bf16(c);
         c.parallel.use_distributed_optimizer = true;
         c.parallel.num_distributed_optimizer_instances = 2;
       }},
      {"WeightsGatheredInFp8", 4,
       [](RunConfig& c) {
         use_fp8(c);
         c.transformer.fp8.param_gather = true;
         c.parallel.tensor_model_parallel_size = 2;
         c.parallel.use_distributed_optimizer = true;
       }},
  };
}

// Calls f with the run of each rank, after some iterations.
void with_trained_ranks(const ReplicaRun& layout,
                        const std::function<void(TrainingRun&, int rank)>& f) {
  const CapturedStdout captured_out;
  comm::run_ranks(layout.ranks, [&](const comm::Group& world) {
    RunConfig config = replica_gpt();
    layout.change(config);
    config = resolved(config, world.size());
    const auto tokenizer = open_tokenizer(config, {}, world);
    GptTask task(config, tokenizer);
    TrainingRun run(config, task, world);
    run.train();
    f(run, world.rank());
  });
}

// A part of a tensor that another rank has, too.
struct Replicated {
  std::string name;
  Tensor elements;
};

std::vector<Replicated> replicated_parts(const TrainingState& state) {
  std::vector<Replicated> parts;
  const bool has_replicas = state.parallel.data.size() > 1;
  const auto is_copied = [&](const OptimizedParameter& parameter) {
    return state.parallel.mesh.size(parameter.shared_axes.with(MeshAxis::kInstance)) > 1;
  };
  bool divides_state = false;
  for (const FlatBuffer& buffer : state.parameters.buffers()) {
    int64_t kept = 0;
    for (const FlatSpan& share : buffer.shares) kept += share.size();
    divides_state = divides_state || kept < buffer.layout.numel;
    for (const size_t index : buffer.parameters) {
      const OptimizedParameter& parameter = state.parameters.parameters()[index];
      if (!buffer.bucket_params.empty()) continue;
      if (has_replicas || is_copied(parameter)) {
        parts.push_back({parameter.name, parameter.variable.data()});
      }
    }
  }
  state.parameters.visit_divided(
      [&](const OptimizedParameter& parameter, const FlatSpan&, const Tensor& elements) {
        if (is_copied(parameter)) parts.push_back({parameter.name, elements});
      });
  state.optimizer.visit_memory([&](const OptimizedParameter& parameter, std::string_view kind,
                                   const FlatSpan&, const Tensor& elements) {
    if ((has_replicas && !divides_state) || is_copied(parameter)) {
      parts.push_back({std::string(kind) + " of " + parameter.name, elements});
    }
  });
  return parts;
}

void flip(const Tensor& elements, uint64_t bit) {
  Tensor data = elements;
  bit %= static_cast<uint64_t>(data.bytes()) * 8;
  static_cast<uint8_t*>(data.view().data)[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
}

class ReplicaCheckTest : public testing::TestWithParam<ReplicaRun> {};

// The run itself compares after every iteration: no difference means no false alarm. Then flips one
// bit after the other, each on one rank.
TEST_P(ReplicaCheckTest, ReportsEveryFlipAndNothingElse) {
  constexpr int kFlips = 80;
  std::atomic<int> num_reports = 0;
  with_trained_ranks(GetParam(), [&](TrainingRun& run, int rank) {
    TrainingState& state = run.state();
    EXPECT_EQ(state.progress.iteration, 4);
    std::mt19937_64 random(5);  // the same on every rank
    for (int i = 0; i < kFlips; ++i) {
      const int victim = static_cast<int>(random() % static_cast<uint64_t>(GetParam().ranks));
      const uint64_t which = random();
      const uint64_t bit = random();
      const std::vector<Replicated> parts = replicated_parts(state);
      if (parts.empty()) continue;  // stages with nothing but their own layers
      const Replicated& part = parts[which % parts.size()];
      if (rank == victim) flip(part.elements, bit);
      const std::string message = message_of<ReplicaError>([&] { expect_equal_replicas(state); });
      if (rank == victim) {
        flip(part.elements, bit);
        EXPECT_THAT(message, AllOf(HasSubstr(part.name + ": rank"),
                                   HasSubstr("rank " + std::to_string(victim) + " (")));
        ++num_reports;
      }
      EXPECT_THAT(message, HasSubstr("iteration 4: "));
    }
    expect_equal_replicas(state);
  });
  EXPECT_EQ(num_reports, GetParam().name == std::string("Pipeline") ? 0 : kFlips);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ReplicaCheckTest, testing::ValuesIn(replica_runs()),
                         [](const auto& info) { return std::string(info.param.name); });

// The table of the words at both ends of a pipeline.
TEST(ReplicaCheckPipelineTest, ComparesWhatStagesShare) {
  std::atomic<int> num_reports = 0;
  const auto with_pipeline = [](RunConfig& c) { c.parallel.pipeline_model_parallel_size = 2; };
  with_trained_ranks({"Pipeline", 2, with_pipeline}, [&](TrainingRun& run, int rank) {
    TrainingState& state = run.state();
    ASSERT_EQ(state.gradients.tied().size(), 1u);
    const TiedParameter& tied = state.gradients.tied().front();
    for (uint64_t i = 0; i < 20; ++i) {
      if (rank == 1) flip(tied.variable.data(), 1237 * i);
      EXPECT_THAT(
          message_of<ReplicaError>([&] { expect_equal_replicas(state); }),
          testing::ContainsRegex("embedding.word_embeddings.weight: rank 0 .[^ ]*. and rank 1 "));
      if (rank == 1) flip(tied.variable.data(), 1237 * i);
      ++num_reports;
    }
    expect_equal_replicas(state);
  });
  EXPECT_EQ(num_reports, 40);
}

TEST(ReplicaCheckMajorityTest, NamesTheRankThatDiffersFromMost) {
  with_trained_ranks(replica_runs()[1], [](TrainingRun& run, int rank) {
    const Tensor& norm = run.state().parameters.parameters().back().variable.data();
    if (rank == 1) flip(norm, 3);
    EXPECT_THAT(message_of<ReplicaError>([&] { expect_equal_replicas(run.state()); }),
                AllOf(testing::ContainsRegex(": rank 1 .[^ ]*. differs from ranks 0 .[^ ]*., 2 "),
                      HasSubstr("1 tensors"), HasSubstr("go on from the last checkpoint")));
  });
}

// Flips a bit of the first weights of rank 1 in the third iteration.
class FlippingTask final : public GptTask {
 public:
  using GptTask::GptTask;

  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override {
    const bool is_due = state != nullptr && state->progress.iteration == 2;
    if (is_due && !std::exchange(has_flipped, true)) {
      flip(state->parameters.parameters().front().variable.data(), 29);
    }
    return GptTask::forward_step(split, chunk, batch, activations);
  }

  TrainingState* state = nullptr;  // whose bit is flipped; null: none
  bool has_flipped = false;
};

// What a run with two ranks says when a bit flips; it saves after the second iteration, and next
// after the fourth.
std::string message_of_flip(const TemporaryDirectory& directory, int64_t interval,
                            bool saves_async) {
  const CapturedStdout captured_out;
  std::string message;
  comm::run_ranks(2, [&](const comm::Group& world) {
    RunConfig config = replica_gpt();
    config.training.train_iters = 8;
    config.training.check_weight_hash_across_dp_replicas_interval = interval;
    config.checkpoint.save = directory.path().string();
    config.checkpoint.save_interval = 2;
    config.checkpoint.async_save = saves_async;
    config = resolved(config, world.size());
    const auto tokenizer = open_tokenizer(config, {}, world);
    FlippingTask task(config, tokenizer);
    TrainingRun run(config, task, world);
    if (world.rank() == 1) task.state = &run.state();
    const std::string own = message_of<ReplicaError>([&] { run.train(); });
    if (world.rank() == 0) message = own;
  });
  return message;
}

TEST(ReplicaCheckRunTest, EndsWithinTheIntervalAndBeforeASave) {
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of_flip(directory, 1, false), HasSubstr("iteration 3: "));
  EXPECT_EQ(latest_iteration(directory.path()), 2);
}

TEST(ReplicaCheckRunTest, EverySaveCompares) {
  for (const bool saves_async : {false, true}) {
    const TemporaryDirectory directory;
    EXPECT_THAT(message_of_flip(directory, 0, saves_async), HasSubstr("iteration 4: "));
    EXPECT_EQ(iterations_in(directory.path()), std::vector<int64_t>{2});
  }
}

}  // namespace
}  // namespace megatron
