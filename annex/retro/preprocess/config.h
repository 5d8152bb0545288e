#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron::retro {

enum class EmbedderType { kMegatron, kHashed };
enum class IndexType { kBase, kParallelAdd };

// The settings of the preprocessing. Names are Megatron's flag names.
struct RetroConfig {
  std::string retro_workdir;
  std::string retro_tasks = "build";
  int64_t retro_block_size = 100000;      // chunks in a file
  int64_t retro_doc_block_size = 100000;  // documents in a file of the individual databases

  // The samples that neighbours are searched for; the data is also the database.
  int64_t retro_gpt_seed = 1234;
  std::vector<std::string> retro_gpt_data_path;  // weight prefix weight prefix ...
  std::string retro_gpt_split = "969,30,1";
  int64_t retro_gpt_eval_interval = 0;
  int64_t retro_gpt_eval_iters = -1;
  TokenizerConfig gpt_tokenizer;  // retro_gpt_tokenizer_type, _vocab_file, _merge_file, _model
  int64_t retro_gpt_seq_length = 0;
  int64_t retro_gpt_global_batch_size = 0;
  int64_t retro_gpt_chunk_length = 64;

  TokenizerConfig bert_tokenizer;  // retro_bert_tokenizer_type, _vocab_file
  int64_t retro_bert_batch_size = 128;
  int64_t retro_bert_max_chunk_length = 256;
  EmbedderType bert_embedder_type = EmbedderType::kMegatron;

  int64_t retro_index_nfeats = 1024;
  IndexType retro_index_type = IndexType::kParallelAdd;
  std::string retro_index_str;
  int64_t retro_index_ntrain = 0;
  double retro_index_train_load_fraction = 1;
  double retro_index_add_load_fraction = 1;
  bool retro_index_delete_training_embeddings = true;
  bool retro_index_delete_added_codes = true;

  int64_t retro_query_ef_search = 256;
  int64_t retro_query_nprobe = 65536;
  int64_t retro_query_num_neighbors_query = 200;
  int64_t retro_query_num_neighbors_save = 20;
};

// A step of the preprocessing.
enum class Task { kBuildDatabase, kTrainIndex, kAddToIndex, kQueryNeighbors };
// The steps of --retro-tasks, in its order: "build" and "index-build" stand for several. Throws
// ConfigError.
std::vector<Task> tasks_of(const std::string& retro_tasks);

// Everything wrong with a config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const RetroConfig& config);

}  // namespace megatron::retro
