#include "annex/retro/tasks/dialogue_task.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "annex/retro/model/retro_task.h"
#include "megatron/core/error.h"
#include "megatron/data/blended_dataset.h"
#include "megatron/data/data_paths.h"

namespace megatron {

DialogueSampleOptions resolved_sample_options(DialogueSampleOptions options,
                                              const TransformerConfig& config,
                                              const Tokenizer& tokenizer) {
  options.seq_length = config.seq_length;
  options.eod = tokenizer.eod();
  options.eos = tokenizer.special_id(SpecialToken::kEos).value_or(options.eod);
  options.pad = tokenizer.special_id(SpecialToken::kPad).value_or(options.eod);
  if (config.retro.reads_neighbors()) {
    options.num_neighbors = config.retro.num_neighbors;
    options.neighbor_length = config.retro.neighbor_length();
  }
  return options;
}

DialogueTask::DialogueTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                           Options options)
    : GptTask(config, std::move(tokenizer)), options_(std::move(options)) {
  std::vector<std::string> problems = retro_run_problems(config);
  const auto exclude = [&](bool is_on, const char* flag) {
    if (is_on) problems.push_back(std::string(flag) + " is not for dialogues; remove it");
  };
  exclude(config.data.prefix_lm, "--prefix-lm");
  exclude(config.data.mock_data, "--mock-data");
  exclude(config.training.curriculum.is_on(), "curriculum_learning");
  if (!problems.empty()) throw ConfigError(problems);
}

std::string_view DialogueTask::model_name() const {
  return config().transformer.retro.add_retriever ? "Retro" : "GPT";
}

std::shared_ptr<const SampleDataset> DialogueTask::opened(const std::string& name,
                                                          std::string_view part,
                                                          int64_t num_samples) const {
  DialogueSampleOptions sample = options_.sample;
  sample.prompt.dataset = name;
  const std::filesystem::path file = dialogue_file(options_.data_folder, name, part);
  try {
    return std::make_shared<const DialogueDataset>(read_dialogues(file, options_.fields), sample,
                                                   num_samples, tokenizer());
  } catch (const ConfigError& error) {
    throw ConfigError(file.string() + ": " + error.what());
  }
}

SplitDatasets DialogueTask::open_datasets(const SampleCounts& sizes) const {
  const Blend blend = parse_blend(config().data.data_path, "--data-path");
  // A random order takes each dialogue once in an epoch.
  const bool is_cyclic = config().data.dataloader_type == DataloaderType::kCyclic;
  const auto alone = [&](std::string_view part,
                         int64_t samples) -> std::shared_ptr<const SampleDataset> {
    if (samples == 0) return nullptr;
    return opened(blend.prefixes.front(), part, is_cyclic ? 0 : samples);
  };
  if (blend.prefixes.size() == 1) {
    return {
        .train = alone("train", sizes.train), .valid = alone("dev", sizes.valid), .test = nullptr};
  }
  std::vector<std::shared_ptr<const SampleDataset>> members;
  std::vector<nlohmann::ordered_json> names;
  for (const std::string& name : blend.prefixes) {
    members.push_back(opened(name, "train", sizes.train));
    names.emplace_back(name);
  }
  const std::vector<double> equal(members.size(), 1.0);
  return {.train = std::make_shared<const BlendedDataset>(
              std::move(members), names, blend.weights.empty() ? equal : blend.weights, sizes.train,
              BlendedDataset::Options{}),
          .valid = nullptr,
          .test = nullptr};
}

int64_t DialogueTask::trailing_ids_per_sample() const {
  return DialogueDataset::behind_text(options_.sample);
}

void DialogueTask::adjust_batch(GptBatch& batch, Split) const {
  set_answers(batch, options_.sample, options_.answer_loss_only);
}

}  // namespace megatron
