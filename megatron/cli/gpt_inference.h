#pragma once

#include <memory>
#include <string>

#include "megatron/cli/flag_table.h"
#include "megatron/device/stream.h"
#include "megatron/models/gpt/gpt_model.h"
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
};
void add_model_flags(FlagTable& table, ModelFlags& flags);

// A model ready to use.
struct GptForInference {
  std::unique_ptr<OwnedStream> stream;
  std::unique_ptr<GptModel> model;
  std::unique_ptr<Tokenizer> tokenizer;  // null when neither flags nor directory name one
  int64_t vocab_size = 0;                // ids that mean something; the rest is padding

  // The tokenizer; throws ConfigError saying which flags give one when there is none.
  const Tokenizer& required_tokenizer() const;
};

// Opens a checkpoint of this program (architecture and tokenizer are those of its run) or a Hugging
// Face directory (tokenizer: its vocab.json and merges.txt). Tokenizer flags win over both.
GptForInference load_for_inference(const ModelFlags& flags);

}  // namespace megatron::cli
