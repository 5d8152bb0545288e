#include "megatron/cli/text_flags.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/core/log.h"

namespace megatron::cli {

void add_prompt_flags(FlagTable& table, PromptFlags& flags, std::string help,
                      const std::string& members) {
  table.add("--prompt", flags.prompts, std::move(help)).none();
  table.add_optional(
      "--prompt-file", flags.prompt_file,
      fmt::format("File with one text per line, or JSON lines {}; - is standard input.", members));
}

void DrawFlags::apply(Request& request) const {
  request.sampling = sampling;
  if (greedy) request.sampling.top_k = 1;
  request.seed = static_cast<uint64_t>(seed);
}

void add_draw_flags(FlagTable& table, DrawFlags& flags) {
  table.add_switch("--greedy", flags.greedy, "Take the most probable token; same as --top-k 1.");
  SamplingOptions& sampling = flags.sampling;
  table.add("--temperature", sampling.temperature, "Logits are divided by it.");
  table.add("--top-k", sampling.top_k, "Sample from the k most probable tokens; 0: from all.");
  table.add("--top-p", sampling.top_p,
            "Nucleus sampling: sample from the most probable tokens whose probabilities sum to p; "
            "0: from all.");
  table.add("--length-penalty", flags.length_penalty,
            "Beam search: divide scores by length to this power.");
  table.add("--seed", flags.seed, "Random seed of sampling.");
}

std::vector<std::string> problems(const SamplingOptions& sampling) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  const auto require_share = [&](const char* flag, double value) {
    require(value >= 0 && value <= 1, fmt::format("{} {} must be between 0 and 1", flag, value));
  };
  require(sampling.temperature > 0,
          fmt::format("--temperature {} must be above 0; use --greedy for no randomness",
                      sampling.temperature));
  require(sampling.top_k >= 0, fmt::format("--top-k {} must be 0 or more", sampling.top_k));
  require_share("--top-p", sampling.top_p);
  require_share("--top-p-decay", sampling.top_p_decay);
  require_share("--top-p-bound", sampling.top_p_bound);
  require_share("--min-p", sampling.min_p);
  require(sampling.top_p > 0 || (sampling.top_p_decay == 0 && sampling.top_p_bound == 0),
          "--top-p-decay and --top-p-bound change --top-p; give it, too");
  require(sampling.repetition_penalty > 0,
          fmt::format("--repetition-penalty {} must be above 0", sampling.repetition_penalty));
  return found;
}

void add_draft_flags(FlagTable& table, DraftOptions& drafts) {
  table.add("--num-speculative-tokens", drafts.num_speculative_tokens,
            "Maximum draft tokens of a text that a step verifies (speculative decoding); 0: none.");
  table.add_choice("--speculative-method", drafts.speculative_method,
                   {{"ngram", DraftMethod::kNgram},
                    {"mtp", DraftMethod::kMultiToken},
                    {"draft_model", DraftMethod::kModel}},
                   "Drafts: tokens that followed the same n-gram earlier in the text (ngram), "
                   "those of the model's multi-token prediction (mtp), or the most probable ones "
                   "of --speculative-model (draft_model).");
  table.add_optional("--speculative-model", drafts.speculative_model,
                     "Checkpoint of a smaller GPT with the same vocabulary.");
  table.add("--prompt-lookup-max", drafts.prompt_lookup_max, "Longest n-gram to look for.");
  table.add("--prompt-lookup-min", drafts.prompt_lookup_min, "Shortest n-gram to look for.");
}

bool has_draft_model(const DraftOptions& drafts) {
  return drafts.num_speculative_tokens > 0 && drafts.speculative_method == DraftMethod::kModel;
}

std::vector<std::string> problems(const DraftOptions& drafts) {
  std::vector<std::string> found;
  const auto at_least = [&](const char* flag, int64_t value, int64_t least) {
    if (value < least) found.push_back(fmt::format("{} {} must be {} or more", flag, value, least));
  };
  at_least("--num-speculative-tokens", drafts.num_speculative_tokens, 0);
  constexpr int64_t kMostDrafts = 64;
  if (drafts.num_speculative_tokens > kMostDrafts) {
    found.push_back(fmt::format("--num-speculative-tokens {} must be {} or less",
                                drafts.num_speculative_tokens, kMostDrafts));
  }
  if (has_draft_model(drafts) && drafts.speculative_model.empty()) {
    found.emplace_back(
        "--speculative-method draft_model needs --speculative-model; give the checkpoint of a "
        "smaller model with the same vocabulary");
  }
  at_least("--prompt-lookup-min", drafts.prompt_lookup_min, 1);
  at_least("--prompt-lookup-max", drafts.prompt_lookup_max, drafts.prompt_lookup_min);
  return found;
}

void warn_of_ineffective(const DraftOptions& drafts) {
  const bool is_ngram = drafts.speculative_method == DraftMethod::kNgram;
  if (drafts.num_speculative_tokens == 0 && !is_ngram) {
    warn(fmt::format("--speculative-method {} has no effect without --num-speculative-tokens",
                     name_of(drafts.speculative_method)));
  }
  if (!drafts.speculative_model.empty() && !has_draft_model(drafts)) {
    warn(
        "--speculative-model has no effect without --num-speculative-tokens and "
        "--speculative-method draft_model");
  }
  if ((drafts.num_speculative_tokens == 0 || !is_ngram) &&
      (drafts.prompt_lookup_max != DraftOptions{}.prompt_lookup_max ||
       drafts.prompt_lookup_min != DraftOptions{}.prompt_lookup_min)) {
    warn(
        "--prompt-lookup-max and --prompt-lookup-min have no effect without "
        "--num-speculative-tokens and --speculative-method ngram");
  }
}

}  // namespace megatron::cli
