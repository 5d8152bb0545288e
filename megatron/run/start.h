#pragma once

#include <filesystem>
#include <memory>

#include "megatron/comm/group.h"
#include "megatron/interchange/load_source.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/run_config.h"

// What comes before a TrainingRun.
namespace megatron {

// Opens the tokenizer of the config, and sets padded_vocab_size to the rows that the tokenizer and
// the loaded model need, unless the config has it. Threads of one process share the tokenizer.
// Throws ConfigError if the tokenizer has more ids than the model has rows.
std::shared_ptr<const Tokenizer> open_tokenizer(RunConfig& config, const LoadSource& source = {},
                                                const comm::Group& world = {});

// Creates the directory of --save and clears what an interrupted save left there. Throws IoError if
// nothing can be written: before the training, not at its first save. One rank calls it.
void prepare_save_directory(const std::filesystem::path& save);

}  // namespace megatron
