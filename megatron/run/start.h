#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/checkpoint/config.h"
#include "megatron/checkpoint/directory_lock.h"
#include "megatron/comm/group.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/run_config.h"

// The steps before a TrainingRun.
namespace megatron {

// Opens the tokenizer of the config, and sets padded_vocab_size to the rows that the tokenizer and
// the loaded model need, unless the config has it. Threads of one process share the tokenizer.
// Throws ConfigError if the tokenizer has more ids than the model has rows. With --save, rank 0
// keeps the tokenizer beside the checkpoints, so that they can be used without its flags.
std::shared_ptr<const Tokenizer> open_tokenizer(RunConfig& config,
                                                const CheckpointSource& source = {},
                                                const comm::Group& world = {});

// The directory of --save, which belongs to one run as long as this object lives.
struct SaveDirectory {
  std::unique_ptr<const DirectoryLock> lock;  // on rank 0; null without --save
  // Iterations of other runs there, known to rank 0: this run does not delete them.
  std::vector<int64_t> foreign_iterations;
};

// Creates the directory of --save, if there is one, and locks it; notes the iterations of other
// runs, and clears what an interrupted save left. `source` is what the run continues. Throws
// IoError if nothing can be written: before the training, not at its first save. Throws ConfigError
// if another run saves there now, or if this run starts at iteration 0 among checkpoints of another
// one without --overwrite-checkpoints. Every rank of `world` calls it.
std::shared_ptr<const SaveDirectory> prepare_save_directory(const CheckpointConfig& config,
                                                            const CheckpointSource& source = {},
                                                            const comm::Group& world = {});

}  // namespace megatron
