#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/run/run_checkpoint.h"
#include "megatron/run/start.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/replica_check.h"
#include "megatron/training/trainer.h"
#include "tests/support/captured_output.h"

// Runs of a GPT with experts, as the command line configures them.
namespace megatron::expert_training {

using FlagWords = std::vector<std::string>;

inline FlagWords operator+(FlagWords a, const FlagWords& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A small GPT, and its experts.
inline const FlagWords kDenseModel = {"--num-layers",
                                      "4",
                                      "--hidden-size",
                                      "16",
                                      "--num-attention-heads",
                                      "4",
                                      "--seq-length",
                                      "16",
                                      "--max-position-embeddings",
                                      "16",
                                      "--micro-batch-size",
                                      "1",
                                      "--global-batch-size",
                                      "8",
                                      "--train-iters",
                                      "5",
                                      "--lr",
                                      "0.01",
                                      "--clip-grad",
                                      "0.3",
                                      "--weight-decay",
                                      "0.1",
                                      "--init-method-std",
                                      "0.2",
                                      "--attention-dropout",
                                      "0",
                                      "--hidden-dropout",
                                      "0",
                                      "--tokenizer-type",
                                      "NullTokenizer",
                                      "--vocab-size",
                                      "63",
                                      "--make-vocab-size-divisible-by",
                                      "8",
                                      "--mock-data",
                                      "--num-workers",
                                      "0",
                                      "--eval-iters",
                                      "0",
                                      "--device",
                                      "cpu",
                                      "--num-threads",
                                      "1",
                                      "--ffn-hidden-size",
                                      "40"};
inline const FlagWords kModel =
    kDenseModel + FlagWords{"--num-experts", "4", "--moe-ffn-hidden-size", "12"};

inline const FlagWords kLlamaStyle = {"--swiglu",
                                      "--disable-bias-linear",
                                      "--normalization",
                                      "RMSNorm",
                                      "--position-embedding-type",
                                      "rope",
                                      "--untie-embeddings-and-output-weights"};

// Appends a flag and its value.
inline void add_flag(FlagWords& words, const char* flag, int64_t value) {
  words.emplace_back(flag);
  words.push_back(std::to_string(value));
}

struct LayoutFlags {
  int ranks = 1;
  FlagWords flags = {};

  std::string text() const {
    std::string all = std::to_string(ranks) + " ranks";
    for (const std::string& word : flags) all += " " + word;
    return all;
  }
};

// A rank's part of a training.
class ExpertTraining {
 public:
  ExpertTraining(const FlagWords& flags, const comm::Group& world, const std::string& load)
      : args_(parsed(flags, world.size())), task_(args_, open_tokenizer(args_)) {
    state_.emplace(args_, task_, world, Stream{});
    if (!load.empty()) {
      args_.checkpoint.load = load;
      load_run(args_, *state_, find_source(load, 0, true));
      state_->gradients.gather_parameters();
    }
    task_.open_data(state_->progress);
    trainer_.emplace(args_, task_, *state_);
  }
  ~ExpertTraining() {
    trainer_.reset();
    state_.reset();
    task_.close();
  }

  IterationResult iterate() {
    trainer_->train_step();
    trainer_->finish_step();
    return trainer_->take_finished()->result;
  }
  void save(const std::string& directory) {
    args_.checkpoint.save = directory;
    EXPECT_TRUE(make_run_saver(args_, *state_, task_)->save());
  }
  TrainingState& state() { return *state_; }

 private:
  static TrainingArgs parsed(const FlagWords& flags, int64_t ranks) {
    TrainingArgs args = parse_training_args(flags, ModelKind::kGpt, ranks);
    args.settings = arg_map(args);
    return args;
  }

  TrainingArgs args_;
  GptTask task_;
  std::optional<TrainingState> state_;
  std::optional<Trainer> trainer_;
};

// The iterations of every rank.
using RankResults = std::vector<std::vector<IterationResult>>;

inline RankResults train(const FlagWords& model, const LayoutFlags& layout, int iterations,
                         const std::string& load = "", const std::string& save = "") {
  RankResults results(static_cast<size_t>(layout.ranks));
  const CapturedStdout captured_out;
  comm::run_ranks(layout.ranks, [&](const comm::Group& world) {
    ExpertTraining run(model + layout.flags, world, load);
    for (int i = 0; i < iterations; ++i) {
      results[static_cast<size_t>(world.rank())].push_back(run.iterate());
    }
    expect_equal_replicas(run.state());
    if (!save.empty()) run.save(save);
  });
  return results;
}

inline void expect_identical_results(const RankResults& got, const RankResults& want) {
  for (size_t rank = 0; rank < got.size(); ++rank) {
    for (size_t i = 0; i < got[rank].size(); ++i) {
      EXPECT_EQ(got[rank][i].losses, want[rank][i].losses) << "rank " << rank;
      EXPECT_EQ(got[rank][i].grad_norm, want[rank][i].grad_norm) << "rank " << rank;
    }
  }
}

inline void expect_equal_results(const RankResults& got, const std::vector<IterationResult>& want,
                                 size_t first = 0) {
  for (const std::vector<IterationResult>& of_rank : got) {
    for (size_t i = 0; i < of_rank.size(); ++i) {
      const IterationResult& one = want[first + i];
      EXPECT_NEAR(*of_rank[i].grad_norm, *one.grad_norm, 2e-6 * *one.grad_norm) << first + i;
      for (size_t k = 0; k < of_rank[i].losses.size(); ++k) {
        EXPECT_EQ(of_rank[i].losses[k].first, one.losses[k].first);
        EXPECT_NEAR(of_rank[i].losses[k].second, one.losses[k].second,
                    1e-6 * std::max(1.0, one.losses[k].second))
            << one.losses[k].first << " of iteration " << first + i;
      }
    }
  }
  EXPECT_FALSE(got.back()[0].losses.empty()) << "the last rank has the losses";
}

}  // namespace megatron::expert_training
