#pragma once

#include <memory>
#include <string>

#include "megatron/device/stream.h"
#include "megatron/inference/generate.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/config.h"

namespace megatron::cli {

// Which model a command uses, and how text becomes ids.
struct ModelFlags {
  std::string load;
  int64_t ckpt_step = 0;
  TokenizerConfig tokenizer;
  int64_t num_threads = 0;
  DeviceChoice device = DeviceChoice::kAuto;
  ParallelConfig parallel;  // of this command, whatever run saved the checkpoint
  ArgMap without_effect;
};
void add_model_flags(FlagTable& table, ModelFlags& flags);

// A model ready to use, or this rank's part of it.
struct GptForInference {
  std::unique_ptr<OwnedStream> stream;
  std::unique_ptr<GptModel> model;
  ParallelContext parallel;
  // Of rank 0 alone, to which texts come; null when neither flags nor directory name one.
  std::unique_ptr<Tokenizer> tokenizer;
  int64_t vocab_size = 0;  // of rank 0: ids that mean something; the rest is padding
  int64_t vocab_rows = 0;  // as the checkpoint has them, before they are made to divide

  // The tokenizer; throws ConfigError saying which flags give one when there is none.
  const Tokenizer& required_tokenizer() const;
  InferenceModel inference() const { return {*model, parallel, vocab_rows}; }
};

// Opens a checkpoint of this program (architecture and tokenizer are those of its run) or a Hugging
// Face directory (tokenizer: its vocab.json and merges.txt). Tokenizer flags win over both. Every
// rank of `world` calls it and loads its part, whatever layout saved the checkpoint.
GptForInference load_for_inference(const ModelFlags& flags, const comm::Group& world = {});

}  // namespace megatron::cli
