#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/name_rule.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/transformer/config.h"

// The weights of Hugging Face models, by tables of names and layouts.
namespace megatron {

NameTable hf_names(const HfFamily& family, const TransformerConfig& config);
// The model's parameters, with our names and shapes.
std::vector<TensorSpec> hf_tensors(const HfModel& model);

// The weights of a folder or file under our names, like open_mapped().
StoredSection open_hf_weights(const std::shared_ptr<const ShardedWeights>& file,
                              const HfModel& model);

// The pooler of a BERT: the layer between the first token and the heads of the whole text. Files
// with only the LM head may have it, too.
enum class HfPooler { kIfUsed, kIfThere };

// The weights as contents of a checkpoint without settings, read on demand. Throws IoError;
// FormatError if the configuration does not fit the tensors of the files.
CheckpointContents open_hf_checkpoint(const std::filesystem::path& directory, const HfModel& model,
                                      HfPooler pooler = HfPooler::kIfUsed);

// Writes config.json and the weights into an existing directory, without padding rows. `source`
// returns our parameters.
void save_hf_model(const std::filesystem::path& directory, const HfModel& model,
                   std::span<const TensorSpec> ours, int64_t max_shard_bytes,
                   const TensorSource& source, WeightsFormat format = WeightsFormat::kSafetensors);

}  // namespace megatron
