#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "megatron/core/file.h"
#include "megatron/formats/safetensors.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/run/run_checkpoint.h"
#include "megatron/run/start.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/trainer.h"
#include "tests/parallel/shards.h"
#include "tests/support/captured_output.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"

// Runs of Megatron Core with experts (../shared/golden/README-modern.md), from the same first
// weights on the same data.
namespace megatron::golden_experts {

inline constexpr const char* kFolder = "golden/moe/";

inline std::filesystem::path file(const std::string& name) { return shared_data(kFolder + name); }

// The words of a line, and of the variables of flags.sh that it names.
inline std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) {
    if (word[0] != '$') {
      words.push_back(word);
      continue;
    }
    const std::string script = read_text(file("flags.sh"));
    const std::string begin = word.substr(1) + "=\"";
    const size_t at = script.find(begin) + begin.size();
    for (std::string& one : words_of(script.substr(at, script.find('"', at) - at))) {
      words.push_back(std::move(one));
    }
  }
  return words;
}

// Drops a flag and its values.
inline void drop(std::vector<std::string>& words, const std::string& flag) {
  const auto at = std::find(words.begin(), words.end(), flag);
  if (at == words.end()) return;
  auto end = at + 1;
  while (end != words.end() && !end->starts_with("--")) ++end;
  words.erase(at, end);
}

// A run's folder; "<run>.<layout>" is that run on several ranks.
struct GoldenRun {
  nlohmann::json json;  // of the rank that has the losses
  int ranks = 1;
  std::vector<std::string> flags;
  std::string weights;  // the file of the first ones

  GoldenRun(const std::string& name, const std::string& cache) {
    std::string source = name + "/run.json";
    if (!std::filesystem::exists(file(source))) {
      const auto of_rank = [&](int rank) {
        return name + "/run.rank" + std::to_string(rank) + ".json";
      };
      while (std::filesystem::exists(file(of_rank(ranks)))) ++ranks;
      source = of_rank(ranks - 1);
    }
    json = nlohmann::json::parse(read_text(file(source)));
    const std::string base = name.substr(0, name.find('.')) + "/run.json";
    weights = nlohmann::json::parse(read_text(file(base)))["init"].get<std::string>();
    flags = words_of(json["flags"].get<std::string>());
    for (const char* flag : {"--save", "--save-interval", "--load", "--finetune", "--no-load-optim",
                             "--no-load-rng", "--data-path", "--data-cache-path", "--ckpt-format",
                             "--distributed-backend", "--disable-jit-fuser", "--vocab-size"}) {
      drop(flags, flag);
    }
    // The last token ends documents.
    for (const char* word : {"--device", "cpu", "--num-threads", "1", "--vocab-size", "127"}) {
      flags.emplace_back(word);
    }
    flags.insert(flags.end(), {"--data-path", file("data/tiny").string()});
    flags.insert(flags.end(), {"--data-cache-path", cache});
  }

  const nlohmann::json& iteration(size_t number) const { return json["iterations"][number - 1]; }
};

// A whole tensor by our name: Megatron Core has one of each expert, we have one of all.
inline Tensor whole_tensor(const SafetensorsFile& stored, const std::string& name) {
  const auto copy_of_entry = [&](const SafetensorsFile::Entry& entry) {
    Tensor copy(entry.spec.shape, entry.spec.dtype, Stream{});
    std::memcpy(copy.view().data, entry.view.data, static_cast<size_t>(copy.bytes()));
    return entry.spec.dtype == DType::kFloat32 ? copy : cast(copy, DType::kFloat32);
  };
  if (const auto* entry = stored.find(name)) return copy_of_entry(*entry);
  const std::string part = ".experts.linear_";
  const size_t at = name.find(part);
  if (at == std::string::npos) return {};
  std::vector<Tensor> experts;
  while (true) {
    const std::string one = name.substr(0, at) + ".experts.local_experts." +
                            std::to_string(experts.size()) + "." + name.substr(at + 9);
    const auto* entry = stored.find(one);
    if (entry == nullptr) break;
    experts.push_back(copy_of_entry(*entry));
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

// A rank's part of a run.
class GoldenTraining {
 public:
  // `load`: a checkpoint to continue from; empty: the first weights.
  GoldenTraining(const GoldenRun& golden, const comm::Group& world,
                 const std::vector<std::string>& more = {}, const std::string& load = "") {
    std::vector<std::string> words = golden.flags;
    words.insert(words.end(), more.begin(), more.end());
    args_ = parse_training_args(words, ModelKind::kGpt, world.size());
    tokenizer_ = open_tokenizer(args_);
    task_ = std::make_unique<GptTask>(args_, tokenizer_);
    state_ = std::make_unique<TrainingState>(args_, *task_, world, Stream{});
    if (load.empty()) {
      take_first_weights(SafetensorsFile(file(golden.weights)));
    } else {
      args_.checkpoint.load = load;
      load_run(args_, *state_, find_source(load, 0, true));
      state_->gradients.gather_parameters();
    }
    task_->open_data(state_->progress);
    trainer_ = std::make_unique<Trainer>(args_, *task_, *state_);
  }
  ~GoldenTraining() {
    trainer_.reset();
    task_->close();
  }

  IterationResult iterate() {
    trainer_->train_step();
    trainer_->finish_step();
    return trainer_->take_finished()->result;
  }
  TrainingState& state() { return *state_; }
  const TrainingArgs& args() const { return args_; }

 private:
  void take_first_weights(const SafetensorsFile& stored) {
    for (const Module* chunk : state_->chunks) {
      for (Parameter& tensor : named_tensors(*chunk)) {
        const Tensor whole = whole_tensor(stored, tensor.name);
        EXPECT_TRUE(whole.defined()) << tensor.name;
        if (!whole.defined()) continue;
        Tensor data = tensor.variable.data();
        const Tensor part = shard_of(whole, tensor.info.sharding);
        expect_shape(part.shape(), data.shape(), tensor.name.c_str());
        copy_into(data, part);
      }
    }
    state_->optimizer.reload_main_params();
  }

  TrainingArgs args_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<GptTask> task_;
  std::unique_ptr<TrainingState> state_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace megatron::golden_experts
