#pragma once

#include <memory>

#include "megatron/models/gpt/finetune_task.h"
#include "megatron/run/interface_hash.h"
#include "megatron/run/train_step_args.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/run_config.h"
#include "megatron/training/train_task.h"

// A training task in a shared library, for `--train-step lib.so` of the training commands. The
// library's source defines a task and ends with
//
//   std::unique_ptr<megatron::TrainTask> make(const megatron::TrainStepParts& parts) {...}
//   MEGATRON_TRAIN_STEP(make)
//
// The library has no code of megatron.cpp in it: it uses that of the program (docs/library.md,
// examples/train_step).
namespace megatron {

// The arguments of a library's factory of its task. The references are valid during the call.
struct TrainStepParts {
  const RunConfig& config;  // resolved, with padded_vocab_size
  std::shared_ptr<const Tokenizer> tokenizer;
  const TrainStepArgs& args;                // of --train-step-args
  const FinetuneTask::Data* finetune_data;  // of `megatron finetune`, whose task is a FinetuneTask;
                                            // null in other commands
};

}  // namespace megatron

#ifdef MG_CUDA_BUILD
#define MEGATRON_INTERFACE_DEVICE "CUDA"
#else
#define MEGATRON_INTERFACE_DEVICE "CPU"
#endif
// Equal texts mean equal headers, so that library and program agree on every class. The program
// compares the texts before it calls the library.
#define MEGATRON_INTERFACE "headers " MEGATRON_INTERFACE_HASH " for " MEGATRON_INTERFACE_DEVICE

#define MEGATRON_TRAIN_STEP(make)                                                       \
  extern "C" const char* megatron_train_step_interface() { return MEGATRON_INTERFACE; } \
  extern "C" megatron::TrainTask* megatron_make_train_task(                             \
      const megatron::TrainStepParts* parts) {                                          \
    return make(*parts).release();                                                      \
  }
