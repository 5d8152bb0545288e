#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/interchange/hf/binding.h"

// The classes of transformers' ForSequenceClassification in config.json.
namespace megatron {

inline constexpr std::string_view kHfClassifier = "ForSequenceClassification";

// The names of the classes (id2label) of a ForSequenceClassification; empty for other models.
std::vector<std::string> hf_class_names(HfBinding& fields);
// The fields of these classes.
nlohmann::json hf_class_fields(const std::vector<std::string>& names);
// LABEL_0, LABEL_1, ...: transformers' default names of classes.
std::vector<std::string> hf_default_class_names(int64_t count);

}  // namespace megatron
