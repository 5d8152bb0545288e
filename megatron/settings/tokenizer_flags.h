#pragma once

#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The flags of every command that opens a tokenizer.
void add_tokenizer_flags(FlagTable& flags, TokenizerConfig& tokenizer);

}  // namespace megatron
