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
  int64_t vocab_size = 0;  // rows without padding; 0: all
  int64_t max_shard_bytes = kMaxShardBytes;
  WeightsFormat format = WeightsFormat::kSafetensors;
  std::vector<std::string> class_names = {};  // of a BERT with a classification head
  std::string problem_type = {};              // of that head (HfModel)
  std::filesystem::path tokenizer = {};       // a directory whose tokenizer files are copied
  // The end-of-text id of a generative model, if neither the contents nor the tokenizer specify it.
  // 0: unknown.
  int64_t default_end_token = 0;
};

// Writes a Hugging Face model into a directory: config.json, the weights, and the tokenizer's files
// if `options` or the stored settings (vocab_file, merge_file) name them, and the checksums of all
// (core/checksums.h). Replaces an existing model, including its weights, once the new one is
// complete. Throws IoError, Unsupported.
void write_hf_folder(const std::filesystem::path& directory, const CheckpointContents& contents,
                     const TransformerConfig& config, const HfFolderOptions& options = {});

}  // namespace megatron
