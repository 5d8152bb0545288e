#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/sharded.h"
#include "megatron/transformer/config.h"

// Writes Hugging Face models.
namespace megatron {

inline constexpr int64_t kMaxShardBytes = 10'000'000'000;

struct HfFolderOptions {
  int64_t vocab_size = 0;  // rows that are not padding; 0: all
  int64_t max_shard_bytes = kMaxShardBytes;
  WeightsFormat format = WeightsFormat::kSafetensors;
  std::vector<std::string> class_names = {};  // of a BERT with a classification head
  std::string problem_type = {};              // of that head (HfModel)
  std::filesystem::path tokenizer = {};       // a directory whose tokenizer files are copied
  // Of a model that continues texts: ends one, if neither the contents nor the tokenizer say what
  // does. 0: not known.
  int64_t default_end_token = 0;
};

// Writes a Hugging Face model into a directory: config.json, the weights, and the tokenizer's files
// if `options` or the stored settings (vocab_file, merge_file) name them, and the checksums of all
// (core/checksums.h). A model that is already
// there is replaced once the new one is complete; nothing of its weights stays. Throws IoError,
// Unsupported.
void write_hf_folder(const std::filesystem::path& directory, const CheckpointContents& contents,
                     const TransformerConfig& config, const HfFolderOptions& options = {});

}  // namespace megatron
