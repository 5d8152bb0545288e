#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <span>
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
#include "tests/support/captured_output.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

// Runs of Megatron Core 0.19 under tests/golden/core and ../shared/golden, repeated from their
// initial weights and their batches (tests/golden/core/README.md).
namespace megatron {

// A whole tensor by our name, in fp32; undefined if there is none. Megatron Core has a tensor for
// each expert, we have one for all of them.
inline Tensor core_tensor(const SafetensorsFile& stored, const std::string& name) {
  const auto in_fp32 = [&](const std::string& key) {
    const Tensor copy = copy_of(stored.at(key));
    return copy.dtype() == DType::kFloat32 ? copy : cast(copy, DType::kFloat32);
  };
  if (stored.find(name) != nullptr) return in_fp32(name);
  const std::string part = ".experts.";
  const size_t at = name.find(part + "linear_");
  if (at == std::string::npos) return {};
  std::vector<Tensor> experts;
  while (true) {
    const std::string one = name.substr(0, at) + ".experts.local_experts." +
                            std::to_string(experts.size()) + "." + name.substr(at + part.size());
    if (stored.find(one) == nullptr) break;
    experts.push_back(in_fp32(one));
  }
  if (experts.empty()) return {};
  const Shape& shape = experts[0].shape();
  const auto count = static_cast<int64_t>(experts.size());
  Tensor all(shape.rank() == 1 ? Shape{count, shape[0]} : Shape{count, shape[0], shape[1]},
             DType::kFloat32, Stream{});
  for (int64_t e = 0; e < count; ++e) {
    Tensor place = all.slice(e, 1).reshape(shape);
    copy_into(place, experts[static_cast<size_t>(e)]);
  }
  return all;
}

// A recorded run: a folder such as golden/mla/mla_qlora. "<run>.<layout>" is that run on several
// ranks, each with its own record.
class CoreRun {
 public:
  CoreRun(const std::string& folder, const std::string& name)
      : root_(root_of(folder, name)), folder_(root_ / name) {
    while (std::filesystem::exists(record_of_rank(num_ranks_))) ++num_ranks_;
    recorded_ = parsed(num_ranks_ == 0 ? folder_ / "run.json" : record_of_rank(num_ranks_ - 1));
    const nlohmann::json base = parsed(root_ / name.substr(0, name.find('.')) / "run.json");
    initial_.emplace(root_ / base.at("init").get<std::string>());
  }

  // True if the run exists, in the repository or beside it.
  static bool is_there(const std::string& folder, const std::string& name) {
    return std::filesystem::exists(root_of(folder, name) / name);
  }
  std::filesystem::path file(const std::string& name) const { return folder_ / name; }
  int num_ranks() const { return std::max(num_ranks_, 1); }
  // As recorded by the last rank, which has the losses.
  const nlohmann::json& iterations() const { return recorded_.at("iterations"); }
  const SafetensorsFile& initial() const { return *initial_; }
  bool has_gradients() const { return std::filesystem::exists(file("grad.safetensors")); }
  SafetensorsFile gradients() const { return SafetensorsFile(file("grad.safetensors")); }

  // Its configuration with further flags, for so many ranks. It reads the data of the run if they
  // are in its folder.
  RunConfig config(const std::vector<std::string>& more, int64_t ranks) const {
    std::vector<std::string> words = {"--device", "cpu", "--num-threads", "1"};
    if (std::filesystem::exists(root_ / "data/tiny.bin")) {
      words.insert(words.end(), {"--data-path", (root_ / "data/tiny").string(), "--split",
                                 "100,0,0", "--data-cache-path", cache_.path().string()});
    } else {
      words.emplace_back("--mock-data");
    }
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
  static nlohmann::json parsed(const std::filesystem::path& path) {
    return nlohmann::json::parse(std::ifstream(path));
  }
  std::filesystem::path record_of_rank(int rank) const {
    return file("run.rank" + std::to_string(rank) + ".json");
  }
  // The repository has some runs.
  static std::filesystem::path root_of(const std::string& folder, const std::string& name) {
    const std::filesystem::path own = source_path("tests/golden/core/" + folder);
    return std::filesystem::exists(own / name) ? own : shared_data("golden/" + folder);
  }

  // Flags of its environment, and how many words follow each.
  inline static const std::map<std::string, int> kSkipped = {{"--data-path", 1},
                                                             {"--data-cache-path", 1},
                                                             {"--load", 1},
                                                             {"--finetune", 0},
                                                             {"--no-load-optim", 0},
                                                             {"--no-load-rng", 0},
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
  std::filesystem::path folder_;
  TemporaryDirectory cache_;
  int num_ranks_ = 0;  // with a record each
  nlohmann::json recorded_;
  std::optional<SafetensorsFile> initial_;
};

// Trains on the recorded batches of two samples; data of the run's own must be the same.
class CoreTask final : public GptTask {
 public:
  using GptTask::GptTask;
  ~CoreTask() override { close(); }

 protected:
  void adjust_batch(GptBatch& batch, Split) const override {
    const auto read = [&](std::vector<int64_t>& ids, const std::string& name) {
      std::vector<int64_t> recorded;
      for (int64_t row = 0; row < batch.micro_batch_size; ++row) {
        const int64_t sample = batch.first_sample + row;
        std::string index = std::to_string(sample / 2);
        index = std::string(3 - index.size(), '0') + index;
        const Tensor stored = copy_of(batches_.at(name + index)).slice(sample % 2, 1);
        const std::span<const int32_t> values = stored.span<int32_t>();
        recorded.insert(recorded.end(), values.begin(), values.end());
      }
      if (config().data.mock_data) {
        ids = std::move(recorded);
      } else {
        EXPECT_EQ(ids, recorded) << name << batch.first_sample;
      }
    };
    read(batch.tokens, "tokens_");
    read(batch.labels, "labels_");
    std::fill(batch.loss_mask.begin(), batch.loss_mask.end(), 1.0f);
  }

 private:
  SafetensorsFile batches_{source_path("tests/golden/core/batches.safetensors")};
};

// The loss of that name; NaN if there is none.
inline double loss_of(const IterationResult& result, const std::string& name) {
  for (const auto& [loss, value] : result.losses) {
    if (loss == name) return value;
  }
  return std::nan("");
}

// One rank's part of a repeated run.
class CoreTrainer {
 public:
  // From the initial weights, or from the checkpoint of --load.
  CoreTrainer(const CoreRun& run, const RunConfig& config, const comm::Group& world)
      : config_(config),
        task_(config_, tokenizer_of(config_, world)),
        state_(config_, task_, world, Stream{}),
        trainer_(config_, task_, state_, {}) {
    if (config_.checkpoint.load.empty()) {
      take_weights(run.initial());
    } else {
      quietly(world,
              [this] { load_run(config_, state_, find_source(config_.checkpoint.load, 0, true)); });
      state_.gradients.gather_parameters();
    }
    quietly(world, [this] { task_.open_data(state_.progress); });
  }

  TrainingState& state() { return state_; }
  int64_t iteration() const { return state_.progress.iteration; }
  // To --save.
  void save() { EXPECT_TRUE(make_run_saver(config_, state_, task_)->save()); }

  IterationResult iterate() {
    trainer_.train_step();
    trainer_.finish_step();
    return trainer_.take_finished()->result;
  }

  // Compares the gradients of the last iteration, before clipping, on one rank.
  void expect_gradients(const SafetensorsFile& want, double relative = 1e-5) const {
    int64_t compared = 0;
    for (const Module* chunk : state_.chunks) {
      for (const Parameter& parameter : named_parameters(*chunk)) {
        const Tensor theirs = core_tensor(want, parameter.name);
        ASSERT_TRUE(theirs.defined()) << parameter.name;
        expect_close(
            copied(parameter.variable.grad()), theirs,
            {.relative = relative, .absolute = 1e-6 * std::clamp(largest(theirs), 0.1, 1.0)},
            parameter.name);
        compared += theirs.numel();
      }
    }
    int64_t all = 0;
    for (const SafetensorsFile::Entry& entry : want.tensors()) all += entry.spec.shape.numel();
    EXPECT_EQ(compared, all);
  }

 private:
  // Calls f without the lines that rank 0 prints.
  template <class F>
  static void quietly(const comm::Group& world, F&& f) {
    std::optional<CapturedStdout> captured_out;
    if (world.rank() == 0) captured_out.emplace();
    f();
  }
  static std::shared_ptr<const Tokenizer> tokenizer_of(RunConfig config, const comm::Group& world) {
    std::shared_ptr<const Tokenizer> tokenizer;
    quietly(world, [&] { tokenizer = open_tokenizer(config, {}, world); });
    return tokenizer;
  }

  void take_weights(const SafetensorsFile& initial) {
    for (const Module* chunk : state_.chunks) {
      for (Parameter& parameter : named_tensors(*chunk)) {
        const Tensor whole = core_tensor(initial, parameter.name);
        EXPECT_TRUE(whole.defined()) << parameter.name;
        if (!whole.defined()) continue;
        copy_into(parameter.variable.mutable_data(), shard_of(whole, parameter.info.sharding));
      }
    }
    state_.optimizer.reload_main_params();
  }

  const RunConfig config_;
  CoreTask task_;
  TrainingState state_;
  Trainer trainer_;
};

}  // namespace megatron
