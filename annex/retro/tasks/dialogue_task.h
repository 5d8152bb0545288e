#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "annex/retro/tasks/dialogue_dataset.h"
#include "megatron/models/gpt/gpt_task.h"

namespace megatron {

// Instruction tuning of a GPT or a Retro on dialogues, for `megatron retro-finetune`. --data-path
// names data sets in a folder. A single one is evaluated on its validation dialogues; Compat:
// several are blended and not evaluated, as in Megatron-LM.
class DialogueTask final : public GptTask {
 public:
  struct Options {
    std::string data_folder;
    DialogueFields fields;
    DialogueSampleOptions sample;  // resolved_sample_options()
    bool answer_loss_only = false;
  };

  // `config` is resolved and has padded_vocab_size. Throws ConfigError for settings that Retro does
  // not support.
  DialogueTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
               Options options);
  ~DialogueTask() override { close(); }

  std::string_view model_name() const override;

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  int64_t trailing_ids_per_sample() const override;
  void adjust_batch(GptBatch& batch, Split split) const override;

 private:
  std::shared_ptr<const SampleDataset> opened(const std::string& name, std::string_view part,
                                              int64_t num_samples) const;

  const Options options_;
};

// Fills fields from the model and its tokenizer: lengths, special ids, and neighbours unless the
// gate is closed.
DialogueSampleOptions resolved_sample_options(DialogueSampleOptions options,
                                              const TransformerConfig& config,
                                              const Tokenizer& tokenizer);

}  // namespace megatron
