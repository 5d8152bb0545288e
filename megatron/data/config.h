#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

enum class DataloaderType { kSingle, kCyclic };
// Replacement of missing neighbours. Compat: Megatron-LM indexes chunks modulo their number, so
// that -1 is the last chunk, followed by the first.
enum class MissingNeighbor { kLastChunk, kEndOfDocument };

// The samples of a run and their order. Names are Megatron's flag names.
struct DataConfig {
  std::vector<std::string> data_path;  // one prefix, or weight prefix weight prefix ...
  std::vector<std::string> train_data_path;
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string data_args_path;                     // a file with the arguments of data_path
  std::string per_split_data_args_path;           // a JSON file: train, valid, test
  std::string split = "969, 30, 1";               // proportions of data_path: train, valid, test
  std::string data_cache_path;                    // index caches; empty: beside the data
  bool multiple_validation_sets = false;          // evaluates each validation dataset separately
  std::vector<std::string> validation_set_names;  // their names; empty: file names
  bool mock_data = false;                         // synthetic samples instead of files

  bool reset_position_ids = false;    // positions restart after each end of document
  bool reset_attention_mask = false;  // tokens do not attend to other documents
  bool eod_mask_loss = false;         // end-of-document tokens do not count in the loss

  // Prefix language model: attention is bidirectional in a prefix of random length of each
  // sequence, or, with reset_attention_mask, of each document.
  bool prefix_lm = false;
  bool loss_on_targets_only = false;                       // prefix_lm: no loss on the prefixes
  bool reweight_loss_based_on_position_frequency = false;  // prefix_lm: early tokens weigh more

  // Retro (docs/retro.md).
  std::string retro_workdir;                     // preprocessing directory; empty: none
  std::string retro_project_dir;                 // the same for later versions; empty: none
  std::vector<std::string> retro_neighbor_dirs;  // "train=DIR ...", instead of the workdir's
  bool retro_verify_neighbor_count = true;       // error if neighbours belong to other samples
  MissingNeighbor retro_pad_missing = MissingNeighbor::kLastChunk;

  DataloaderType dataloader_type = DataloaderType::kSingle;
  bool data_sharding = true;    // cyclic order: each rank samples from its own shard of the data
  int64_t num_workers = 2;      // prefetching threads
  double mask_prob = 0.15;      // BERT, T5: fraction of masked tokens
  double short_seq_prob = 0.1;  // BERT, T5: fraction of samples cut short
};

// Everything wrong with a config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const DataConfig& config);

}  // namespace megatron
