#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/transformer/config.h"

// Low-rank adapters in a PEFT folder: adapter_config.json, and adapter_model.safetensors or
// adapter_model.bin.
namespace megatron {

// False for a folder with a whole model.
bool is_peft_folder(const std::filesystem::path& folder);

// The base model as named in the folder: a path, or a name on a hub. Throws FormatError if it names
// none.
std::string base_model_of(const std::filesystem::path& folder);

struct PeftAdapters {
  // --lora-rank, --lora-alpha, --lora-dropout and --lora-target-modules of a model with these
  // adapters.
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  std::vector<std::string> layers;
  StoredSection weights;  // under our names, fp32
};

// The adapters for a model of that config, and of the family `model_type` if it has one, with the
// weights `base`. If a layer of ours is several in PEFT (queries, keys and values), their adapters
// are combined into one with a block-structured B, whose rank is the sum of their ranks, or
// unchanged if they share A. So are those of an expert, which PEFT has as linear layers of its own
// ("mlp.experts.3.gate_proj"). Throws IoError, FormatError, and Unsupported, which names the
// setting, for other kinds of adapters.
PeftAdapters read_peft_adapters(const std::filesystem::path& folder,
                                const TransformerConfig& config, const StoredSection& base,
                                std::string_view model_type = {});

}  // namespace megatron
