#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/interchange/hf/family.h"
#include "megatron/transformer/config.h"

// The config.json of Hugging Face models.
namespace megatron {

class Quantization;

// The problem_type of a classifier with independent classes.
inline constexpr std::string_view kHfMarks = "multi_label_classification";

struct HfModel {
  const HfFamily* family = nullptr;
  // Resolved; seq_length is the model's maximum, params_dtype the dtype of the file, and
  // padded_vocab_size the vocabulary until the caller pads it.
  TransformerConfig transformer;
  int64_t vocab_size = 0;
  // Class names of a BERT with a classification head instead of the LM head
  // (ForSequenceClassification); empty: LM head.
  std::vector<std::string> class_names;
  std::string problem_type = {};  // of such a head: "regression", ...; empty: unknown
  std::optional<int64_t> bos_token_id;
  // Ids that each end a text.
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;
  std::optional<int64_t> decoder_start_token_id;  // of a T5
  // Quantization of the folder's weights (quantized.h); null: plain. A folder is written with
  // plain weights.
  std::shared_ptr<const Quantization> quantization = nullptr;
};

// Reads <path>/config.json, or the file `path` itself. The eos_token_id of generation_config.json
// beside it counts instead, as in transformers. Warns of fields that the family does not have, and
// of layers for multi-token prediction whose weights are not in the folder: they are left out.
// Throws IoError; FormatError, which names every field that is missing or of the wrong kind;
// Unsupported, which names every field whose value this program does not support, or the families
// that a model of an unknown model_type resembles.
HfModel read_hf_config(const std::filesystem::path& path);

// The config.json of a model; reading it gives the same model. Throws Unsupported, with all
// reasons, if the family cannot express the configuration.
std::string hf_config_text(const HfModel& model);

// The family that fits this configuration of a model that was trained here: that of `model_type`,
// if it does. Throws Unsupported if there is none.
const HfFamily& hf_family_of(const TransformerConfig& config, std::string_view model_type = {});

}  // namespace megatron
