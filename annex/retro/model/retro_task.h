#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/models/gpt/gpt_task.h"

namespace megatron {

// Settings that Retro does not support, a sentence each; empty without one.
std::vector<std::string> retro_run_problems(const RunConfig& config);

// Next-token prediction with neighbours of each chunk, which were retrieved before: what `megatron
// pretrain-retro` trains. Without --retro-add-retriever a GPT, on the same samples.
class RetroTask final : public GptTask {
 public:
  // `config` is resolved and has padded_vocab_size. Throws ConfigError for what Retro has not.
  RetroTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer);

  std::string_view model_name() const override;

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;

 private:
  // Without --retro-workdir.
  SplitDatasets mock_datasets(const SampleCounts& sizes) const;
  SplitDatasets retrieved_datasets(const SampleCounts& sizes) const;
};

}  // namespace megatron
