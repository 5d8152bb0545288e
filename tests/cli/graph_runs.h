#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "megatron/cli/ranks.h"
#include "megatron/comm/threads.h"
#include "megatron/device/allocator.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/run/device_choice.h"
#include "megatron/settings/training_args.h"
#include "megatron/tokenizers/null_tokenizer.h"
#include "megatron/training/trainer.h"
#include "tests/support/captured_output.h"
#include "tests/support/tensors.h"

// Training runs with and without replayed microbatches.
namespace megatron::cli {

struct GraphRun {
  bool was_recorded = false;
  int64_t num_driver_allocations = 0;  // in the last iteration
  int num_devices = 1;                 // devices of the kind that was used
  std::vector<IterationResult> results;
  Tensor weights;  // all trained values, on the CPU
};

// Trains a small GPT on mock data with `more` flags and returns the calling rank's result.
// `records` overrides the flags.
inline GraphRun rank_graph_run(const std::vector<std::string>& more, std::optional<bool> records,
                               const comm::Group& world) {
  constexpr int64_t kVocabulary = 128;
  constexpr int64_t kIterations = 6;
  std::vector<std::string> words = {"--mock-data",
                                    "--num-layers=2",
                                    "--hidden-size=32",
                                    "--num-attention-heads=4",
                                    "--seq-length=24",
                                    "--max-position-embeddings=24",
                                    "--micro-batch-size=2",
                                    "--global-batch-size=6",
                                    "--lr=1e-2",
                                    "--eval-iters=1",
                                    "--attention-dropout=0.1",
                                    "--hidden-dropout=0.2",
                                    "--num-workers=0",
                                    "--num-threads=1",
                                    "--tokenizer-type=NullTokenizer",
                                    "--vocab-size=" + std::to_string(kVocabulary - 1)};
  words.insert(words.end(), more.begin(), more.end());
  const bool counts_samples = std::count(more.begin(), more.end(), "--rampup-batch-size") > 0;
  words.emplace_back(counts_samples ? "--train-samples=26" : "--train-iters=6");
  TrainingArgs args = parse_training_args(words, ModelKind::kGpt, world.size());
  args.transformer.padded_vocab_size = kVocabulary;
  const std::unique_ptr<OwnedStream> stream = open_stream(args.training, world);
  GptTask task(args, std::make_shared<NullTokenizer>(kVocabulary - 1));
  TrainingState state(args, task, world, stream->get());
  task.open_data(state.progress);
  Trainer trainer(args, task, state, {.records_microbatches = records});

  GraphRun run;
  const auto take = [&] {
    if (const auto finished = trainer.take_finished()) run.results.push_back(finished->result);
  };
  for (int64_t i = 0; i < kIterations; ++i) {
    state.microbatches.update(state.progress.consumed_train_samples, false);
    trainer.train_step();
    take();
    if (i + 2 == kIterations) {
      run.num_driver_allocations = allocator_of(state.stream.device).stats().num_driver_allocations;
    }
  }
  trainer.finish_step();
  take();
  run.num_driver_allocations =
      allocator_of(state.stream.device).stats().num_driver_allocations - run.num_driver_allocations;
  run.was_recorded = trainer.has_recorded_microbatch();
  if (!state.stream.is_cpu()) run.num_devices = num_cuda_devices();
  // An access waits for parameters that other ranks still send.
  for (const OptimizedParameter& one : state.parameters.parameters()) one.variable.data();
  run.weights = state.parameters.buffers().front().params.to(Stream{});
  return run;
}

// The same on several ranks; returns the first rank's result.
inline GraphRun graph_run(const std::vector<std::string>& more,
                          std::optional<bool> records = std::nullopt, int ranks = 1) {
  GraphRun run;
  const std::deque<MemoryPool> pools = pools_of_shared_gpus(ranks);
  const CapturedStdout captured_out;
  comm::run_ranks(ranks, [&](const comm::Group& world) {
    const PoolScope scope(pools.empty() ? nullptr : &pools[static_cast<size_t>(world.rank())]);
    GraphRun one = rank_graph_run(more, records, world);
    if (world.rank() == 0) run = std::move(one);
  });
  return run;
}

inline void expect_same_bits(const GraphRun& got, const GraphRun& want) {
  ASSERT_EQ(got.results.size(), want.results.size());
  for (size_t i = 0; i < want.results.size(); ++i) {
    EXPECT_EQ(got.results[i].losses, want.results[i].losses) << "iteration " << i;
    EXPECT_EQ(got.results[i].grad_norm, want.results[i].grad_norm) << "iteration " << i;
    EXPECT_EQ(got.results[i].loss_scale, want.results[i].loss_scale) << "iteration " << i;
  }
  expect_identical(got.weights, want.weights);
}

// Options that change the passes of a microbatch.
struct GraphCase {
  const char* name;
  std::vector<std::string> flags;
  int ranks = 1;
};
inline void PrintTo(const GraphCase& one, std::ostream* out) { *out << one.name; }

// In 16 bits, with a length that every cuDNN supports without a copy from the host.
inline std::vector<GraphCase> graph_cases() {
  const auto of_128 = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--seq-length=128", "--max-position-embeddings=128"});
    return flags;
  };
  return {
      {"Fp32", {}},
      {"Bf16", of_128({"--bf16"})},
      {"Fp16WhileTheLossScaleFalls",
       of_128({"--fp16", "--hysteresis=1", "--initial-loss-scale=262144"})},
      {"Recompute",
       {"--recompute-granularity=full", "--recompute-method=uniform", "--recompute-num-layers=1"}},
      {"Bf16Recompute", of_128({"--bf16", "--recompute-granularity=full",
                                "--recompute-method=block", "--recompute-num-layers=1"})},
      {"Bf16WithoutDropout", of_128({"--bf16", "--attention-dropout=0", "--hidden-dropout=0"})},
      {"Documents", {"--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"}},
      {"Rotary", {"--position-embedding-type=rope", "--reset-position-ids", "--swiglu"}},
      {"AGrowingBatch", {"--rampup-batch-size", "2", "2", "12"}},
      {"ASkippedIteration", {"--iterations-to-skip", "2"}},
      {"DataParallel",
       of_128({"--bf16", "--global-batch-size=16", "--use-distributed-optimizer",
               "--overlap-grad-reduce", "--overlap-param-gather"}),
       2},
  };
}

inline std::string graph_case_name(const testing::TestParamInfo<GraphCase>& info) {
  return info.param.name;
}

// Compares runs with and without a record.
inline void expect_graph_to_change_nothing(const GraphCase& one, std::vector<std::string> flags) {
  flags.insert(flags.end(), one.flags.begin(), one.flags.end());
  const GraphRun want = graph_run(flags, false, one.ranks);
  const GraphRun got = graph_run(flags, true, one.ranks);
  EXPECT_FALSE(want.was_recorded);
  EXPECT_TRUE(got.was_recorded);
  expect_same_bits(got, want);
  // If ranks share a device, and so a pool, the peak depends on their timing.
  if (one.ranks == 1 || got.num_devices >= one.ranks) {
    EXPECT_EQ(got.num_driver_allocations, 0);
  }
}

}  // namespace megatron::cli
