#include "megatron/interchange/hf/class_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace megatron {

std::vector<std::string> hf_default_class_names(int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("LABEL_{}", i));
  return names;
}

std::vector<std::string> hf_class_names(HfBinding& fields) {
  const std::vector<std::string> architectures = fields.texts("architectures");
  const bool is_classifier = std::ranges::any_of(
      architectures, [](const std::string& name) { return name.ends_with(kHfClassifier); });
  if (!is_classifier) return {};
  constexpr int64_t kDefaultClasses = 2;  // transformers leaves them out
  std::vector<std::string> names =
      hf_default_class_names(fields.size_of("num_labels", kDefaultClasses));
  HfBinding* named = fields.object("id2label");
  if (named == nullptr) return names;
  names.clear();
  for (int64_t i = 0; named->has(std::to_string(i).c_str()); ++i) {
    names.push_back(named->text_of(std::to_string(i).c_str(), ""));
  }
  if (names.empty()) fields.unsupported("id2label", "the classes must be numbered from 0");
  return names;
}

nlohmann::json hf_class_fields(const std::vector<std::string>& names) {
  nlohmann::json by_id = nlohmann::json::object();
  nlohmann::json by_name = nlohmann::json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    by_id[std::to_string(i)] = names[i];
    by_name[names[i]] = i;
  }
  return {{"id2label", by_id}, {"label2id", by_name}};
}

}  // namespace megatron
