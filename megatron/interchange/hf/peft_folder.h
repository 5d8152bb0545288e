#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/transformer/config.h"

// Low-rank adapters in a folder of Hugging Face's PEFT: adapter_config.json, and
// adapter_model.safetensors or adapter_model.bin.
namespace megatron {

// A folder with a whole model is none.
bool is_peft_folder(const std::filesystem::path& folder);

// The model that the adapters belong to, as the folder names it: a path, or a name on a hub. Throws
// FormatError if it names none.
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

// The adapters for a model of that config with the weights `base`. One layer of ours may be several
// there (queries, keys and values): then their adapters become one, whose B is zero outside their
// blocks and whose rank is the sum of theirs; if they share their A, the rank stays. Throws
// IoError, FormatError, and Unsupported, which names the setting, for other kinds of adapters.
PeftAdapters read_peft_adapters(const std::filesystem::path& folder,
                                const TransformerConfig& config, const StoredSection& base);

}  // namespace megatron
