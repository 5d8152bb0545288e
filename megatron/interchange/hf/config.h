#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/transformer/config.h"

// The config.json of Hugging Face models.
namespace megatron {

enum class HfFamily { kGpt2, kLlama, kMistral, kGptNeox, kBloom, kMegatronBert, kBert, kT5, kMt5 };
// "gpt2", "llama", "mistral", "gpt_neox", "bloom", "megatron-bert", "bert", "t5",
// "mt5": the model_type.
std::string_view name_of(HfFamily family);
// The usual --tokenizer-type of such models.
std::string_view tokenizer_type_of(HfFamily family);

// The problem_type of a classifier with independent classes.
inline constexpr std::string_view kHfMarks = "multi_label_classification";

struct HfModel {
  HfFamily family = HfFamily::kGpt2;
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
};

// Reads <path>/config.json, or the file `path` itself. The eos_token_id of generation_config.json
// beside it counts instead, as in transformers. Throws IoError; FormatError for a field that is
// missing or of the wrong kind; Unsupported, which names the field, for models that this program
// does not support.
HfModel read_hf_config(const std::filesystem::path& path);

// The config.json of a model; reading it gives the same model. Throws Unsupported, with all
// reasons, if the family cannot express the configuration.
std::string hf_config_text(const HfModel& model);

// The family that fits this configuration of a model that was trained here. Throws Unsupported if
// there is none.
HfFamily hf_family_of(const TransformerConfig& config);

}  // namespace megatron
