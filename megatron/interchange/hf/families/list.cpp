#include "megatron/interchange/hf/families/list.h"

namespace megatron {

std::span<const HfFamily* const> hf_families() {
  static constexpr const HfFamily* kFamilies[] = {
      &kHfGpt2,       &kHfLlama,  &kHfMistral,      &kHfGptNeox,  &kHfBloom,    &kHfQwen2,
      &kHfQwen3,      &kHfPhi3,   &kHfGranite,      &kHfSmolLm3,  &kHfOlmo2,    &kHfGemma,
      &kHfGemma2,     &kHfGemma3, &kHfStarcoder2,   &kHfGptJ,     &kHfOpt,      &kHfFalcon,
      &kHfMpt,        &kHfCohere, &kHfMixtral,      &kHfQwen2Moe, &kHfQwen3Moe, &kHfDeepSeekV2,
      &kHfDeepSeekV3, &kHfGptOss, &kHfMegatronBert, &kHfBert,     &kHfT5,       &kHfMt5,
  };
  return kFamilies;
}

const HfFamily* find_hf_family(std::string_view model_type) {
  for (const HfFamily* family : hf_families()) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

}  // namespace megatron
