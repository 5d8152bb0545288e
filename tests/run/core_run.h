#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/formats/safetensors.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/run/run_checkpoint.h"
#include "megatron/run/start.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/trainer.h"
#include "megatron/training/training_state.h"
#include "tests/parallel/shards.h"
#include "tests/run/golden_experts.h"
#include "tests/support/captured_output.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"

// Runs of Megatron Core 0.19 under tests/golden/core and ../shared/golden, repeated from their
// initial weights and their batches (tests/golden/core/README.md).
namespace megatron {

// A recorded run: a folder such as golden/mla/mla_qlora.
class CoreRun {
 public:
  CoreRun(const std::string& folder, const std::string& name)
      : root_(root_of(folder, name)),
        recorded_(nlohmann::json::parse(std::ifstream(root_ / name / "run.json"))),
        initial_(root_ / recorded_.at("init").get<std::string>()),
        gradients_(root_ / name / "grad.safetensors") {}

  // Is the run here, in the repository or beside it?
  static bool is_there(const std::string& folder, const std::string& name) {
    return std::filesystem::exists(root_of(folder, name) / name);
  }
  const nlohmann::json& iterations() const { return recorded_.at("iterations"); }
  const SafetensorsFile& initial() const { return initial_; }
  const SafetensorsFile& gradients() const { return gradients_; }

  // Its configuration with further flags, for so many ranks.
  RunConfig config(const std::vector<std::string>& more, int64_t ranks) const {
    std::vector<std::string> words = {"--mock-data", "--device", "cpu", "--num-threads", "1"};
    const std::vector<std::string> flags = flags_of_run();
    for (size_t i = 0; i < flags.size(); ++i) {
      if (kSkipped.contains(flags[i])) {
        i += static_cast<size_t>(kSkipped.at(flags[i]));
      } else {
        words.push_back(flags[i]);
      }
    }
    // Its padded vocabulary of 128 rows has no end of a document, and the batches have none.
    words.insert(words.end(), {"--vocab-size", "127"});
    words.insert(words.end(), more.begin(), more.end());
    RunConfig run = parse_training_args(words, ModelKind::kGpt, ranks);
    run.transformer.padded_vocab_size = 128;
    return run;
  }

 private:
  // The repository has some runs.
  static std::filesystem::path root_of(const std::string& folder, const std::string& name) {
    const std::filesystem::path own = source_path("tests/golden/core/" + folder);
    return std::filesystem::exists(own / name) ? own : shared_data("golden/" + folder);
  }

  // Flags of its environment, and how many words follow each.
  inline static const std::map<std::string, int> kSkipped = {{"--data-path", 1},
                                                             {"--data-cache-path", 1},
                                                             {"--split", 1},
                                                             {"--save", 1},
                                                             {"--save-interval", 1},
                                                             {"--distributed-backend", 1},
                                                             {"--ckpt-format", 1},
                                                             {"--num-workers", 1},
                                                             {"--transformer-impl", 1},
                                                             {"--attention-backend", 1},
                                                             {"--disable-jit-fuser", 0}};

  // The flags of run.json with the variables of flags.txt.
  std::vector<std::string> flags_of_run() const {
    std::ostringstream text;
    const bool is_own = std::filesystem::exists(root_ / "flags.txt");
    text << std::ifstream(root_ / (is_own ? "flags.txt" : "flags.sh")).rdbuf();
    const std::string script = text.str();
    std::string flags = recorded_.at("flags").get<std::string>();
    const std::string without = "(without --moe-ffn-hidden-size)";
    const bool is_dense = flags.find(without) != std::string::npos;
    if (is_dense) flags.erase(flags.find(without), without.size());
    static const std::regex kVariable("(\\w+)=\"([^\"]*)\"");
    for (std::sregex_iterator at(script.begin(), script.end(), kVariable), end; at != end; ++at) {
      const std::string name = "$" + (*at)[1].str();
      const size_t found = flags.find(name);
      if (found != std::string::npos) flags.replace(found, name.size(), (*at)[2].str());
    }
    if (is_dense) flags = std::regex_replace(flags, std::regex("--moe-ffn-hidden-size \\S+"), "");
    std::istringstream words(flags);
    return {std::istream_iterator<std::string>(words), {}};
  }

  std::filesystem::path root_;
  nlohmann::json recorded_;
  SafetensorsFile initial_;
  SafetensorsFile gradients_;
};

// Trains on the recorded batches.
class CoreTask final : public GptTask {
 public:
  using GptTask::GptTask;

 protected:
  void adjust_batch(GptBatch& batch, Split) const override {
    std::string index = std::to_string(batch.first_sample / batch.micro_batch_size);
    index = std::string(3 - index.size(), '0') + index;
    const auto read = [&](std::vector<int64_t>& ids, const std::string& name) {
      const Tensor stored = copy_of(batches_.at(name + index));
      const std::vector<int32_t> values(stored.span<int32_t>().begin(),
                                        stored.span<int32_t>().end());
      ids.assign(values.begin(), values.end());
    };
    read(batch.tokens, "tokens_");
    read(batch.labels, "labels_");
    std::fill(batch.loss_mask.begin(), batch.loss_mask.end(), 1.0f);
  }

 private:
  SafetensorsFile batches_{source_path("tests/golden/core/batches.safetensors")};
};

// One rank's part of a repeated run.
class CoreTrainer {
 public:
  // From the initial weights, or from the checkpoint of --load.
  CoreTrainer(const CoreRun& run, const RunConfig& config, const comm::Group& world)
      : config_(config),
        task_(config_, tokenizer_of(config_)),
        state_(config_, task_, world, Stream{}),
        trainer_(config_, task_, state_, {}) {
    if (!config_.checkpoint.load.empty()) {
      load_run(config_, state_, find_source(config_.checkpoint.load, 0, true));
      state_.gradients.gather_parameters();
      task_.open_data(state_.progress);
      return;
    }
    for (const Module* chunk : state_.chunks) {
      for (Parameter& parameter : named_tensors(*chunk)) {
        const Tensor whole = golden_experts::whole_tensor(run.initial(), parameter.name);
        EXPECT_TRUE(whole.defined()) << parameter.name;
        if (!whole.defined()) continue;
        copy_into(parameter.variable.mutable_data(), shard_of(whole, parameter.info.sharding));
      }
    }
    task_.open_data(state_.progress);
  }

  int64_t iteration() const { return state_.progress.iteration; }
  // To --save.
  void save() { EXPECT_TRUE(make_run_saver(config_, state_, task_)->save()); }

  IterationResult iterate() {
    trainer_.train_step();
    trainer_.finish_step();
    return trainer_.take_finished()->result;
  }

  // Those of the last iteration, before clipping: of one rank.
  void expect_gradients(const SafetensorsFile& want) const {
    int64_t compared = 0;
    for (const Module* chunk : state_.chunks) {
      for (const Parameter& parameter : named_parameters(*chunk)) {
        const Tensor theirs = golden_experts::whole_tensor(want, parameter.name);
        ASSERT_TRUE(theirs.defined()) << parameter.name;
        expect_close(copied(parameter.variable.grad()), theirs,
                     {.relative = 1e-5, .absolute = 1e-6 * std::max(0.1, largest(theirs))},
                     parameter.name);
        compared += theirs.numel();
      }
    }
    int64_t all = 0;
    for (const SafetensorsFile::Entry& entry : want.tensors()) all += entry.spec.shape.numel();
    EXPECT_EQ(compared, all);
  }

 private:
  static std::shared_ptr<const Tokenizer> tokenizer_of(RunConfig config) {
    static std::mutex mutex;  // ranks are threads, and there is one capture at a time
    const std::lock_guard lock(mutex);
    const CapturedStdout captured_out;
    return open_tokenizer(config);
  }

  const RunConfig config_;
  CoreTask task_;
  TrainingState state_;
  Trainer trainer_;
};

}  // namespace megatron
