#pragma once

#include <string>
#include <vector>

#include "annex/retro/tasks/dialogue_dataset.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {

// Flags that `megatron retro-finetune` and `megatron retro-generate` have in common: how an item of
// the data becomes a prompt.
struct DialogueFlags {
  enum class Variant { kByModel, kRetro, kPlain };

  std::string task;
  int64_t ft_neighbours = 1;
  bool longform_answer = false;
  bool bert_retriever_neighbours = false;
  bool use_retrieved_neighbours = false;
  bool reuse_top = false;
  bool short_format = false;
  int64_t template_id = 0;
  Variant variant = Variant::kByModel;
  bool answer_loss_only = false;
  ArgMap without_effect;

  DialogueFields fields(bool reads_answers) const;
  // Without what a model decides. `usual` is the form of kByModel.
  DialogueSampleOptions sample(PromptVariant usual) const;
};

void add_dialogue_flags(FlagTable& table, DialogueFlags& flags);
// Flags that the programs of Megatron-LM accept and do not read.
void add_unread_flags(FlagTable& table, ArgMap& map);
// Problems of their values, one sentence each.
std::vector<std::string> problems(const DialogueFlags& flags);

}  // namespace megatron::cli
