#pragma once

#include "megatron/interchange/hf/family.h"

// The families, one file each.
namespace megatron {

extern const HfFamily kHfBert;
extern const HfFamily kHfBloom;
extern const HfFamily kHfGpt2;
extern const HfFamily kHfGptNeox;
extern const HfFamily kHfLlama;
extern const HfFamily kHfMegatronBert;
extern const HfFamily kHfMistral;
extern const HfFamily kHfMt5;
extern const HfFamily kHfT5;

}  // namespace megatron
