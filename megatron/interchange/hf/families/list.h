#pragma once

#include "megatron/interchange/hf/family.h"

// The families.
namespace megatron {

extern const HfFamily kHfBert;
extern const HfFamily kHfBloom;
extern const HfFamily kHfCohere;
extern const HfFamily kHfDeepSeekV2;
extern const HfFamily kHfDeepSeekV3;
extern const HfFamily kHfFalcon;
extern const HfFamily kHfGemma;
extern const HfFamily kHfGemma2;
extern const HfFamily kHfGemma3;
extern const HfFamily kHfGpt2;
extern const HfFamily kHfGptJ;
extern const HfFamily kHfGptNeox;
extern const HfFamily kHfGptOss;
extern const HfFamily kHfGranite;
extern const HfFamily kHfLlama;
extern const HfFamily kHfMegatronBert;
extern const HfFamily kHfMistral;
extern const HfFamily kHfMixtral;
extern const HfFamily kHfMpt;
extern const HfFamily kHfMt5;
extern const HfFamily kHfOlmo2;
extern const HfFamily kHfOpt;
extern const HfFamily kHfPhi3;
extern const HfFamily kHfQwen2;
extern const HfFamily kHfQwen2Moe;
extern const HfFamily kHfQwen3;
extern const HfFamily kHfQwen3Moe;
extern const HfFamily kHfSmolLm3;
extern const HfFamily kHfStarcoder2;
extern const HfFamily kHfT5;

}  // namespace megatron
