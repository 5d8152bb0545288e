#include "annex/retro/commands/dialogue_flags.h"

#include <fmt/format.h>

#include <utility>

namespace megatron::cli {
void add_dialogue_flags(FlagTable& table, DialogueFlags& flags) {
  table.group("dialogues");
  table.add_optional("--task", flags.task,
                     "retro-generate: name of the data set, which decides how questions are put. "
                     "retro-finetune takes the names in --data-path.");
  table.add("--ft_neighbours", flags.ft_neighbours, "Contexts in front of a question.");
  table.add_switch("--longform-answer", flags.longform_answer,
                   "Learn \"longform_answer\"; the files have an item a line.");
  table.add_switch("--bert-retriever-neighbours", flags.bert_retriever_neighbours,
                   "Contexts are those of \"bert_pretrain_corpus_neighbours\".");
  table.add_switch("--use-retrieved-neighbours", flags.use_retrieved_neighbours,
                   "Contexts are those of \"ctxs\"; of \"sub-paragraphs\" or \"sub_paragraph\" if "
                   "not given.");
  table.add_switch("--reuse-top", flags.reuse_top,
                   "A Retro's encoder reads the first contexts, not those behind --ft_neighbours.");
  table.add_switch("--short-format", flags.short_format,
                   "Ask \"Question: Q? Answer: The answer is\", whatever the data set.");
  table.add("--template-id", flags.template_id,
            "1 to 7: a layout of contexts and question, for the plain form; 0: the usual one.");
  table.add_choice("--retro-prompt-variant", flags.variant,
                   {{"auto", DialogueFlags::Variant::kByModel},
                    {"retro", DialogueFlags::Variant::kRetro},
                    {"plain", DialogueFlags::Variant::kPlain}},
                   "Form of the prompts; auto: that of Megatron-LM, which tunes a Retro with its "
                   "own, tunes a GPT with the plain one, and writes answers to the plain one.");
  table.add_switch("--answer-loss-only", flags.answer_loss_only,
                   "retro-finetune: the loss is that of the answer and its end.");
}

void add_unread_flags(FlagTable& table, ArgMap& map) {
  table.group("of Megatron-LM's scripts");
  const auto add = [&](FlagType type, const ArgValue& fallback,
                       std::initializer_list<const char*> names) {
    for (const char* name : names) {
      table.add_entry(name, type, map, fallback, "Megatron-LM does not read it, either.");
    }
  };
  add(FlagType::kSwitch, false,
      {"--keep-last", "--adaptor", "--eval_ppl", "--debug", "--add_retriever", "--return_doc_ids",
       "--return_neighbor_ids", "--add_offset_doc_ids", "--shuffle_topn", "--chunk0",
       "--disable-encoder", "--qa-space-pad", "--retro-mask-encoder", "--without-title", "--prefix",
       "--question-in-encoder"});
  add(FlagType::kText, std::string(),
      {"--pretrained-checkpoint", "--stored_params", "--offset_dict_path", "--neighbors_path",
       "--valid_neighbors_path", "--database_path", "--valid_database_path", "--dpr-mode",
       "--faiss-ckpt", "--original-db-file", "--reset_eval"});
  add(FlagType::kInt, int64_t{0},
      {"--epochs", "--project-size", "--cyclic-train-iters", "--encoder-layers", "--k", "--r",
       "--m"});
  add(FlagType::kFloat, 0.0,
      {"--weight", "--encoder-hidden-dropout", "--encoder-attention-dropout"});
}

std::vector<std::string> problems(const DialogueFlags& flags) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  require(flags.ft_neighbours >= 0,
          fmt::format("--ft_neighbours {} must be 0 or more", flags.ft_neighbours));
  require(flags.template_id >= 0 && flags.template_id <= kPromptTemplates,
          fmt::format("--template-id {} must be between 0 and {}", flags.template_id,
                      kPromptTemplates));
  require(flags.template_id == 0 || flags.variant != DialogueFlags::Variant::kRetro,
          "--template-id is a layout of the plain form; remove it or --retro-prompt-variant retro");
  require(!flags.bert_retriever_neighbours || !flags.use_retrieved_neighbours,
          "--bert-retriever-neighbours and --use-retrieved-neighbours name two fields of contexts; "
          "remove one of them");
  return found;
}

DialogueFields DialogueFlags::fields(bool reads_answers) const {
  return {.contexts = bert_retriever_neighbours  ? ContextField::kCorpus
                      : use_retrieved_neighbours ? ContextField::kRetrieved
                                                 : ContextField::kParagraph,
          .has_longform_answer = longform_answer,
          .reads_answers = reads_answers};
}

DialogueSampleOptions DialogueFlags::sample(PromptVariant usual) const {
  PromptOptions prompt = {.variant = variant == Variant::kRetro   ? PromptVariant::kRetro
                                     : variant == Variant::kPlain ? PromptVariant::kPlain
                                                                  : usual,
                          .dataset = task,
                          .ft_neighbours = ft_neighbours,
                          .template_id = template_id,
                          .is_short_format = short_format};
  if (template_id > 0) prompt.variant = PromptVariant::kPlain;
  return {.prompt = std::move(prompt), .reuse_top = reuse_top};
}

}  // namespace megatron::cli
