#include "annex/retro/model/retro_task.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "annex/retro/data/mock_retro_dataset.h"
#include "annex/retro/data/retro_dataset.h"
#include "annex/retro/data/retro_samples.h"
#include "annex/retro/data/work_directory.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

// The directory of a split's neighbours: that of --retro-neighbor-dirs, or that of these samples.
std::filesystem::path neighbors_of(const DataConfig& config, Split split,
                                   const RetroSamples& samples) {
  const std::string start = fmt::format("{}=", split_name(split));
  for (const std::string& word : config.retro_neighbor_dirs) {
    if (word.starts_with(start)) return word.substr(start.size());
  }
  return neighbor_directory(config.retro_workdir, split, samples.digest());
}

// Throws ConfigError unless the preprocessing was made for such samples.
void expect_same_samples(const RunConfig& config, const RetroSettings& made_for) {
  std::vector<std::string> problems;
  const auto same = [&](const char* flag, int64_t value, int64_t wanted) {
    if (value == wanted) return;
    problems.push_back(
        fmt::format("{} {} differs from the preprocessing of --retro-workdir {}, "
                    "which has {}; use that, or run it again",
                    flag, value, config.data.retro_workdir, wanted));
  };
  same("--seq-length", config.transformer.seq_length, made_for.seq_length);
  same("--seed", config.training.seed, made_for.seed);
  if (config.transformer.retro.reads_neighbors()) {
    same("--retro-gpt-chunk-length", config.transformer.retro.chunk_length, made_for.chunk_length);
  }
  if (!problems.empty()) throw ConfigError(problems);
}

}  // namespace

std::vector<std::string> retro_run_problems(const RunConfig& config) {
  std::vector<std::string> problems;
  if (!config.transformer.retro.add_retriever) return problems;
  const ParallelConfig& parallel = config.parallel;
  const auto one = [&](int64_t size, const char* flag) {
    if (size == 1) return;
    problems.push_back(
        fmt::format("{} {} is not available for Retro; remove it, and divide the model by "
                    "--tensor-model-parallel-size",
                    flag, size));
  };
  one(parallel.pipeline_model_parallel_size, "--pipeline-model-parallel-size");
  one(parallel.context_parallel_size, "--context-parallel-size");
  const auto exclude = [&](bool is_on, const char* flag) {
    if (is_on) problems.push_back(fmt::format("{} is not available for Retro; remove it", flag));
  };
  exclude(parallel.sequence_parallel, "--sequence-parallel");
  exclude(config.data.prefix_lm, "--prefix-lm");
  exclude(config.training.curriculum.is_on(), "curriculum_learning");
  const CheckpointConfig& checkpoint = config.checkpoint;
  exclude(!checkpoint.save.empty() && checkpoint.save_format == SaveFormat::kHuggingFace,
          "--save-format hf");
  return problems;
}

RetroTask::RetroTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer)
    : GptTask(config, std::move(tokenizer)) {
  std::vector<std::string> problems = retro_run_problems(config);
  const bool has_data = config.data.mock_data || !config.data.retro_workdir.empty();
  if (config.transformer.retro.reads_neighbors() && !has_data) {
    problems.emplace_back(
        "--retro-add-retriever needs --retro-workdir, the directory of Retro's preprocessing; for "
        "synthetic samples give --mock-data");
  }
  if (!problems.empty()) throw ConfigError(problems);
}

std::string_view RetroTask::model_name() const {
  return config().transformer.retro.add_retriever ? "Retro" : "GPT";
}

SplitDatasets RetroTask::open_datasets(const SampleCounts& sizes) const {
  return config().data.retro_workdir.empty() ? mock_datasets(sizes) : retrieved_datasets(sizes);
}

SplitDatasets RetroTask::mock_datasets(const SampleCounts& sizes) const {
  SplitDatasets datasets = GptTask::open_datasets(sizes);
  const TransformerConfig& c = config().transformer;
  const int64_t tokens = c.retro.neighbor_tokens(c.seq_length);
  if (tokens == 0) return datasets;
  for (auto* dataset : {&datasets.train, &datasets.valid, &datasets.test}) {
    if (*dataset == nullptr) continue;
    *dataset = std::make_shared<const MockRetroDataset>(std::move(*dataset), tokens);
  }
  return datasets;
}

SplitDatasets RetroTask::retrieved_datasets(const SampleCounts& sizes) const {
  const DataConfig& data = config().data;
  const RetroConfig& retro = config().transformer.retro;
  const RetroSettings made_for = read_retro_settings(data.retro_workdir);
  expect_same_samples(config(), made_for);
  const RetroSplits splits =
      build_retro_samples(data, made_for.split, sizes, config().transformer.seq_length,
                          config().training.seed, tokenizer());
  std::shared_ptr<const ChunkDatabase> chunks;
  if (retro.reads_neighbors()) {
    chunks = std::make_shared<const ChunkDatabase>(data.retro_workdir, ChunkPart::kTrain,
                                                   retro.chunk_length, tokenizer().eod());
  }
  const auto dataset_of = [&](Split split) -> std::shared_ptr<const SampleDataset> {
    const std::optional<RetroSamples>& samples = splits.of(split);
    if (!samples) return nullptr;
    if (chunks == nullptr) return samples->dataset();
    return std::make_shared<const RetroDataset>(
        samples->dataset(), chunks,
        std::make_shared<const NeighborTable>(neighbors_of(data, split, *samples)),
        RetroDataset::Options{.num_neighbors = retro.num_neighbors,
                              .num_retrieved_chunks = retro.num_retrieved_chunks,
                              .missing = data.retro_pad_missing,
                              .eod = tokenizer().eod(),
                              .verify_neighbor_count = data.retro_verify_neighbor_count});
  };
  return {.train = dataset_of(Split::kTrain),
          .valid = dataset_of(Split::kValid),
          .test = dataset_of(Split::kTest)};
}

}  // namespace megatron
