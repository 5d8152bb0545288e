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
// --tokenizer-type that such models usually have.
std::string_view tokenizer_type_of(HfFamily family);

// The problem_type of a classifier whose classes are right or wrong one by one.
inline constexpr std::string_view kHfMarks = "multi_label_classification";

struct HfModel {
  HfFamily family = HfFamily::kGpt2;
  // Resolved; seq_length is the longest the model knows, params_dtype the one it was saved in, and
  // padded_vocab_size the vocabulary until the caller pads it.
  TransformerConfig transformer;
  int64_t vocab_size = 0;
  // The names of the classes of a BERT with a head for them (ForSequenceClassification), in place
  // of its LM head; empty: the LM head.
  std::vector<std::string> class_names;
  std::string problem_type = {};  // of such a head: "regression", ...; empty: not known
  std::optional<int64_t> bos_token_id;
  // Each of them ends a text.
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;
  std::optional<int64_t> decoder_start_token_id;  // of a T5
};

// Reads <path>/config.json, or the file `path` itself. The eos_token_id of generation_config.json
// beside it counts instead, as in transformers. Throws IoError; FormatError for a field that is
// missing or of the wrong kind; Unsupported naming the field for a model that this program does not
// have.
HfModel read_hf_config(const std::filesystem::path& path);

// config.json for a model; reading it gives the same model. Throws Unsupported, with all reasons,
// when the family cannot express the configuration.
std::string hf_config_text(const HfModel& model);

// The family whose models look like this configuration, for a model that was trained here. Throws
// Unsupported when there is none.
HfFamily hf_family_of(const TransformerConfig& config);

}  // namespace megatron
