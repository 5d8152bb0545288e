#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

enum class DataloaderType { kSingle, kCyclic };
// What stands for a neighbour that was not found. Compat: Megatron-LM counts chunks modulo their
// number, so that -1 is the last chunk, which the first one follows.
enum class MissingNeighbor { kLastChunk, kEndOfDocument };

// The samples of a run and their order. Names are Megatron's flag names.
struct DataConfig {
  std::vector<std::string> data_path;  // one prefix, or weight prefix weight prefix ...
  std::vector<std::string> train_data_path;
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string data_args_path;                     // a file with the words of data_path
  std::string per_split_data_args_path;           // a JSON file: train, valid, test
  std::string split = "969, 30, 1";               // proportions of data_path: train, valid, test
  std::string data_cache_path;                    // index caches; empty: beside the data
  bool multiple_validation_sets = false;          // each dataset of validation is evaluated apart
  std::vector<std::string> validation_set_names;  // theirs; empty: of their files
  bool mock_data = false;                         // synthetic samples instead of files

  bool reset_position_ids = false;    // positions restart after each end of document
  bool reset_attention_mask = false;  // tokens do not see other documents
  bool eod_mask_loss = false;         // end-of-document tokens do not count in the loss

  // The first tokens of each sequence, or of each document with reset_attention_mask, as many as
  // drawn at random, see each other in both directions.
  bool prefix_lm = false;
  bool loss_on_targets_only = false;                       // prefix_lm: not on the prefixes
  bool reweight_loss_based_on_position_frequency = false;  // prefix_lm: early tokens weigh more

  // Retro (docs/retro.md).
  std::string retro_workdir;                     // of the preprocessing; empty: none
  std::string retro_project_dir;                 // the same of a later version; empty: none
  std::vector<std::string> retro_neighbor_dirs;  // "train=DIR ...", not those of the workdir
  bool retro_verify_neighbor_count = true;       // neighbours of other samples are an error
  MissingNeighbor retro_pad_missing = MissingNeighbor::kLastChunk;

  DataloaderType dataloader_type = DataloaderType::kSingle;
  bool data_sharding = true;    // cyclic order: each rank stays in its own part of the data
  int64_t num_workers = 2;      // threads that read ahead
  double mask_prob = 0.15;      // BERT, T5: fraction of masked tokens
  double short_seq_prob = 0.1;  // BERT, T5: fraction of samples cut short
};

// Everything wrong with a config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const DataConfig& config);

}  // namespace megatron
