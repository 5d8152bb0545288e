#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/split.h"
#include "megatron/tokenizers/tokenizer.h"

// The working directory of Retro (--retro-workdir), with the names of Megatron-LM core_r0.5.0:
//
//   args.json                          arguments of `megatron retro-preprocess`
//   db/indexed_dataset_infos.json      the datasets, in the order of their numbers
//   db/individual/<name>/<block>.hdf5  chunks of a block of documents
//   db/merged/<part>.hdf5              chunks of all datasets; a chunk's id is its row in train
//   index/...                          the search index (retro/index_files.h)
//   query/<split>_<digest>/<block>.hdf5  ids of the neighbours of each chunk of the samples
//
// Later versions (--retro-project-dir) have config.json in place of args.json. Names of data and of
// neighbours are relative there: to data/ and to query/.
namespace megatron {

// Settings of the preprocessing that training needs.
struct RetroSettings {
  int64_t chunk_length = 0;
  int64_t seq_length = 0;
  int64_t seed = 0;
  std::string split;                   // of the documents; chunks of its first part are retrieved
  std::vector<std::string> data_path;  // weight prefix weight prefix ...
};
std::filesystem::path retro_args_file(const std::filesystem::path& directory);
// Reads args.json or config.json. Throws ConfigError if there is neither, FormatError if a setting
// is missing.
RetroSettings read_retro_settings(const std::filesystem::path& directory);

// The training for which a directory of a later version was made, with absolute paths.
struct RetroProject {
  RetroSettings settings;
  int64_t train_samples = 0;
  int64_t global_batch_size = 0;
  int64_t eval_interval = 0;
  int64_t eval_iters = 0;
  TokenizerConfig tokenizer;
  std::string data_cache_path;             // empty: none
  std::vector<std::string> neighbor_dirs;  // "train=DIR ..."
};
// Reads config.json. Throws as read_retro_settings().
RetroProject read_retro_project(const std::filesystem::path& directory);

// One dataset whose chunks are in the database: an element of indexed_dataset_infos.json.
struct ChunkSource {
  double ratio = 0;    // share of the chunks that the index is trained with
  std::string prefix;  // of the indexed dataset
  std::string name;    // base name of the prefix
  std::filesystem::path blocks;
  int64_t documents = 0;
  int64_t train_documents = 0;
  int64_t chunks = 0;
  int64_t train_chunks = 0;
  int64_t invalid_chunks = 0;  // chunks without a BERT token, which are in no database
  int64_t sampled_chunks = 0;
  // data_digest() of the dataset when its chunks were cut; empty: made by Megatron-LM.
  std::string digest = {};
};
// A digest of sizes, beginnings and ends of the two files of a dataset, to detect changes since its
// chunks were cut. Throws IoError.
std::string data_digest(const std::string& prefix);
// Throws ConfigError if the source has a digest that its data do not match.
void expect_same_data(const ChunkSource& source, const std::filesystem::path& directory);
std::filesystem::path chunk_sources_file(const std::filesystem::path& directory);
// Throws IoError, FormatError.
std::vector<ChunkSource> read_chunk_sources(const std::filesystem::path& directory);
void write_chunk_sources(const std::filesystem::path& directory,
                         const std::vector<ChunkSource>& sources);

std::filesystem::path individual_chunks(const std::filesystem::path& directory,
                                        std::string_view name);
// Database of the chunks that are retrieved (train), that train the index (sampled), or of the
// remaining documents (valid).
enum class ChunkPart { kTrain, kSampled, kValid };
std::filesystem::path merged_chunks_file(const std::filesystem::path& directory, ChunkPart part);
// The directory with the neighbours of a split's samples. `digest` is that of RetroSamples.
std::filesystem::path neighbor_directory(const std::filesystem::path& directory, Split split,
                                         std::string_view digest);

// A part [begin, end) of many items, and its file.
struct Block {
  int64_t begin = 0;
  int64_t end = 0;
  std::filesystem::path path;
  int64_t size() const { return end - begin; }
};
// The blocks of `count` items: "<begin>-<end>.hdf5" with leading zeros. REQUIRES: block_size > 0.
std::vector<Block> blocks_of(int64_t count, int64_t block_size,
                             const std::filesystem::path& directory);
// The block files of a directory, by begin. Throws IoError; FormatError unless they are contiguous
// from 0 on.
std::vector<Block> find_blocks(const std::filesystem::path& directory);

}  // namespace megatron
