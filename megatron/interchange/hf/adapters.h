#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/name_rule.h"
#include "megatron/transformer/config.h"

// Low-rank adapters (transformer/lora.h) in checkpoints, and as files of Hugging Face's PEFT.
namespace megatron {

// True for the name of an adapter's parameter.
bool is_adapter(std::string_view name);
bool has_adapters(const CheckpointContents& contents);

// The layout of the rows of an adapter's B: that of the weight, which may be transposed in the
// file.
Layout layout_of_rows(Layout weight);

// Merges each adapter into the weight of its layer, W + scale * B A, when the weight is read:
// computed in fp32 and rounded once. Removes the adapters and their optimizer state.
void merge_adapters(CheckpointContents& contents, const TransformerConfig& config);

// Writes adapter_config.json and adapter_model.safetensors into a directory, which is created.
// `config` describes the model, with its adapters; `base_model` is the name or path of the model
// that they adapt. An adapter of a layer that PEFT has as several layers becomes one for each, with
// the same A; that of an expert those of its linear layers. Throws IoError, Unsupported.
void write_peft_adapters(const std::filesystem::path& directory, const CheckpointContents& contents,
                         const TransformerConfig& config, const std::string& base_model);

}  // namespace megatron
