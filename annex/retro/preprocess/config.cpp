#include "annex/retro/preprocess/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "megatron/core/error.h"

namespace megatron::retro {
namespace {

void require(const std::string& value, const char* flag, std::vector<std::string>& found) {
  if (value.empty()) found.push_back(fmt::format("{} is required", flag));
}

void at_least(int64_t value, int64_t least, const char* flag, std::vector<std::string>& found) {
  if (value < least) found.push_back(fmt::format("{} {} must be at least {}", flag, value, least));
}

void check_fraction(double value, const char* flag, std::vector<std::string>& found) {
  if (!(value > 0 && value <= 1)) {
    found.push_back(fmt::format("{} {} must be above 0 and at most 1", flag, value));
  }
}

// The names of block files must differ, and weights are ratios of the index's training.
void check_data_path(const std::vector<std::string>& words, std::vector<std::string>& found) {
  if (words.empty() || words.size() % 2 != 0) {
    found.emplace_back(
        "--retro-gpt-data-path must be weights and prefixes: 1 PREFIX, or 0.3 PREFIX 0.7 PREFIX");
    return;
  }
  std::map<std::string, std::string> prefix_of;
  for (size_t i = 0; i < words.size(); i += 2) {
    double weight = 0;
    const std::string& word = words[i];
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), weight);
    if (error != std::errc() || end != word.data() + word.size() || !(weight > 0)) {
      found.push_back(
          fmt::format("--retro-gpt-data-path: {} must be the weight of {}, a number above 0", word,
                      words[i + 1]));
    }
    const std::string name = std::filesystem::path(words[i + 1]).filename().string();
    const auto [other, is_new] = prefix_of.emplace(name, words[i + 1]);
    if (!is_new) {
      found.push_back(fmt::format(
          "--retro-gpt-data-path: {} and {} have the same name {}, after which the folder of their "
          "chunks is named; rename one of them",
          other->second, words[i + 1], name));
    }
  }
}

void check_tokenizers(const RetroConfig& config, std::vector<std::string>& found) {
  const auto expect = [&](const std::string& type, const char* flag,
                          std::vector<std::string_view> known) {
    for (const std::string_view name : known) {
      if (type == name) return;
    }
    found.push_back(type.empty() ? fmt::format("{} is required: {}", flag, fmt::join(known, " or "))
                                 : fmt::format("{} {} is not supported; use {}", flag, type,
                                               fmt::join(known, " or ")));
  };
  expect(config.gpt_tokenizer.tokenizer_type, "--retro-gpt-tokenizer-type",
         {"GPT2BPETokenizer", "GPTSentencePieceTokenizer"});
  expect(config.bert_tokenizer.tokenizer_type, "--retro-bert-tokenizer-type",
         {"BertWordPieceLowerCase", "BertWordPieceCase"});
  const TokenizerConfig& gpt = config.gpt_tokenizer;
  if (gpt.tokenizer_type == "GPT2BPETokenizer") {
    require(gpt.vocab_file, "--retro-gpt-vocab-file", found);
    require(gpt.merge_file, "--retro-gpt-merge-file", found);
  }
  if (gpt.tokenizer_type == "GPTSentencePieceTokenizer") {
    require(gpt.tokenizer_model, "--retro-gpt-tokenizer-model", found);
  }
  require(config.bert_tokenizer.vocab_file, "--retro-bert-vocab-file", found);
}

void check_index(const RetroConfig& config, std::vector<std::string>& found) {
  require(config.retro_index_str, "--retro-index-str", found);
  at_least(config.retro_index_ntrain, 1, "--retro-index-ntrain", found);
  at_least(config.retro_index_nfeats, 1, "--retro-index-nfeats", found);
  check_fraction(config.retro_index_train_load_fraction, "--retro-index-train-load-fraction",
                 found);
  check_fraction(config.retro_index_add_load_fraction, "--retro-index-add-load-fraction", found);
}

}  // namespace

std::vector<Task> tasks_of(const std::string& retro_tasks) {
  static const std::map<std::string, std::vector<Task>, std::less<>> kTasks = {
      {"build",
       {Task::kBuildDatabase, Task::kTrainIndex, Task::kAddToIndex, Task::kQueryNeighbors}},
      {"db-build", {Task::kBuildDatabase}},
      {"index-build", {Task::kTrainIndex, Task::kAddToIndex}},
      {"index-train", {Task::kTrainIndex}},
      {"index-add", {Task::kAddToIndex}},
      {"query-pretraining-neighbors", {Task::kQueryNeighbors}},
      // Compat: the name in Megatron-LM's documents, and that of its later versions.
      {"pretraining-query-neighbors", {Task::kQueryNeighbors}},
      {"query-neighbors", {Task::kQueryNeighbors}}};
  std::vector<Task> tasks;
  for (size_t begin = 0; begin <= retro_tasks.size();) {
    const size_t end = std::min(retro_tasks.find(',', begin), retro_tasks.size());
    const std::string name = retro_tasks.substr(begin, end - begin);
    const auto found = kTasks.find(name);
    if (found == kTasks.end()) {
      throw ConfigError(fmt::format(
          "--retro-tasks: there is no task \"{}\"; use build, or db-build, index-build "
          "(index-train, index-add) and query-pretraining-neighbors, with commas between them",
          name));
    }
    tasks.insert(tasks.end(), found->second.begin(), found->second.end());
    begin = end + 1;
  }
  return tasks;
}

std::vector<std::string> problems(const RetroConfig& config) {
  std::vector<std::string> found;
  require(config.retro_workdir, "--retro-workdir", found);
  try {
    tasks_of(config.retro_tasks);
  } catch (const ConfigError& error) {
    found.emplace_back(error.what());
  }
  check_data_path(config.retro_gpt_data_path, found);
  check_tokenizers(config, found);
  check_index(config, found);
  at_least(config.retro_block_size, 1, "--retro-block-size", found);
  at_least(config.retro_doc_block_size, 1, "--retro-doc-block-size", found);
  at_least(config.retro_gpt_eval_interval, 1, "--retro-gpt-eval-interval", found);
  at_least(config.retro_gpt_eval_iters, 0, "--retro-gpt-eval-iters", found);
  at_least(config.retro_gpt_global_batch_size, 1, "--retro-gpt-global-batch-size", found);
  at_least(config.retro_gpt_seq_length, 1, "--retro-gpt-seq-length", found);
  at_least(config.retro_gpt_chunk_length, 1, "--retro-gpt-chunk-length", found);
  if (config.retro_gpt_chunk_length > 0 &&
      config.retro_gpt_seq_length % config.retro_gpt_chunk_length != 0) {
    found.push_back(
        fmt::format("--retro-gpt-seq-length {} must be a multiple of --retro-gpt-chunk-length {}",
                    config.retro_gpt_seq_length, config.retro_gpt_chunk_length));
  }
  at_least(config.retro_bert_batch_size, 1, "--retro-bert-batch-size", found);
  at_least(config.retro_bert_max_chunk_length, 3, "--retro-bert-max-chunk-length", found);
  at_least(config.retro_query_ef_search, 1, "--retro-query-ef-search", found);
  at_least(config.retro_query_nprobe, 1, "--retro-query-nprobe", found);
  at_least(config.retro_query_num_neighbors_query, 1, "--retro-query-num-neighbors-query", found);
  at_least(config.retro_query_num_neighbors_save, 1, "--retro-query-num-neighbors-save", found);
  if (config.retro_query_num_neighbors_save > config.retro_query_num_neighbors_query) {
    found.push_back(fmt::format(
        "--retro-query-num-neighbors-save {} must be at most --retro-query-num-neighbors-query {}",
        config.retro_query_num_neighbors_save, config.retro_query_num_neighbors_query));
  }
  return found;
}

}  // namespace megatron::retro
