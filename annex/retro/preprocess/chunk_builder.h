#pragma once

#include "annex/retro/preprocess/config.h"
#include "megatron/comm/group.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::retro {

// The task db-build: cuts every document of --retro-gpt-data-path into chunks, and writes db/ of
// the working directory. A chunk is valid if its text has a BERT token; only valid ones get into
// the merged databases: those of the first part of --retro-gpt-split (train), the first
// --retro-index-ntrain of them, in proportion to the weights (sampled), and the rest (valid). The
// end-of-document token of a document belongs to no chunk. Every rank calls it. Throws ConfigError,
// IoError, FormatError.
void build_chunk_database(const RetroConfig& config, const Tokenizer& gpt, const Tokenizer& bert,
                          const comm::Group& world);

}  // namespace megatron::retro
