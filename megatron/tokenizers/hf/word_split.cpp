#include "megatron/tokenizers/hf/word_split.h"

namespace megatron::hf {

WordSplit WordSplit::gpt2() {
  WordSplit split;
  split.classes_ = std::make_shared<const CharClasses>();
  split.is_gpt2_ = true;
  return split;
}

std::optional<WordSplit> WordSplit::of(std::string_view regex) {
  WordSplit split;
  if (regex == kLlama3Pattern || regex == kQwen2Pattern) {
    split.classes_ = std::make_shared<const CharClasses>();
    split.rules_ = {.max_digits = regex == kQwen2Pattern ? 1 : 3};
    return split;
  }
  if (regex == kGpt4oPattern) {
    split.cased_classes_ = std::make_shared<const CasedClasses>();
    split.rules_ = {.cuts_before_upper = true};
    return split;
  }
  return std::nullopt;
}

}  // namespace megatron::hf
