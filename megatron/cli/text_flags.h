#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/inference/draft.h"
#include "megatron/inference/request.h"
#include "megatron/settings/flag_table.h"

// Groups of flags of the commands that read texts and of those that write them.
namespace megatron::cli {

struct PromptFlags {
  std::vector<std::string> prompts;
  std::string prompt_file;

  bool are_given() const { return !prompts.empty() || !prompt_file.empty(); }
};
// --prompt, with such a help, and --prompt-file, whose JSON lines have the members `members`.
void add_prompt_flags(FlagTable& table, PromptFlags& flags, std::string help,
                      const std::string& members);

struct DrawFlags {
  SamplingOptions sampling = {};
  bool greedy = false;
  double length_penalty = 1;
  int64_t seed = 1234;

  // Sets sampling and seed of a request.
  void apply(Request& request) const;
};
// --temperature, --greedy, --top-k, --top-p, --length-penalty, --seed.
void add_draw_flags(FlagTable& table, DrawFlags& flags);
// Everything wrong with the sampling, one sentence each.
std::vector<std::string> problems(const SamplingOptions& sampling);

// --num-speculative-tokens, --speculative-method, --speculative-model, --prompt-lookup-max,
// --prompt-lookup-min.
void add_draft_flags(FlagTable& table, DraftOptions& drafts);
// True if drafts come from a model of their own.
bool has_draft_model(const DraftOptions& drafts);
std::vector<std::string> problems(const DraftOptions& drafts);
void warn_of_ineffective(const DraftOptions& drafts);

}  // namespace megatron::cli
