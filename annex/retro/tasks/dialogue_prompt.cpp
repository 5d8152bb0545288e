#include "annex/retro/tasks/dialogue_prompt.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr std::string_view kRetroPreamble =
    "System: This is a chat between a user and an artificial intelligence assistant. The assistant "
    "gives helpful, detailed, and polite answers to the user's questions.\n\n";
constexpr std::string_view kPlainPreamble =
    "System: This is a chat between a user and an artificial intelligence assistant. The assistant "
    "gives helpful, detailed, and polite answers to the user's questions based on the context. The "
    "assistant should also indicate when the answer cannot be found in the context.\n\n";

bool is_among(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Data sets whose questions are whole dialogues without contexts.
bool is_dialogue(const std::string& dataset) {
  return is_among(dataset, {"oasst", "quiet_cockatoo", "open_inst", "quiet-cockatoo_commercial"});
}

// Data sets whose questions are already whole turns.
bool is_turn(const PromptOptions& options) {
  const std::string& name = options.dataset;
  if (is_among(name, {"doc2dial", "quac", "qrecc", "sharc"})) return true;
  return options.variant == PromptVariant::kPlain && is_among(name, {"convqa", "chatgptgen"});
}

bool has_short_answers(const PromptOptions& options) {
  const std::string& name = options.dataset;
  if (is_among(name, {"drop", "NarrativeQA", "QASC", "Quoref", "ROPES", "squad1.1", "squad2.0",
                      "newsqa", "nq", "tqa"})) {
    return true;
  }
  return options.variant == PromptVariant::kPlain &&
         is_among(name, {"BioASQ", "DuoRC_ParaphraseRC", "TextbookQA"});
}

// The user's message: the question, and an instruction for the kind of answer.
std::string request_of(const std::string& question, const PromptOptions& options) {
  const std::string& name = options.dataset;
  const bool is_short = has_short_answers(options);
  if (options.variant == PromptVariant::kRetro) {
    if (is_short) return question + " Answer the above question with a short phrase.";
    if (name == "BoolQ") return question + " Answer the above question with True or False.";
    return question + " Answer the above question with a long complete answer.";
  }
  if (is_among(name, {"boolq", "multirc"})) {
    return "Answer the following question with True or False. " + question;
  }
  if (name == "race") {
    return "Answer the following question by selecting one of the provided options. " + question;
  }
  if (options.template_id > 0) return question;  // the layout says it
  if (is_short) return "Answer the following question with a short span. " + question;
  return "Please give a full and complete answer for the question. " + question;
}

// The turn of the user and the beginning of the assistant's.
std::string turn_of(const std::string& question, const PromptOptions& options) {
  if (is_turn(options)) return question;
  const std::string user = options.template_id > 0 ? "" : "User: ";
  const std::string end =
      has_short_answers(options) ? "\n\nAssistant: The answer is" : "\n\nAssistant:";
  return user + request_of(question, options) + end;
}

std::string laid_out(const std::string& preamble, const std::string& context,
                     const std::string& turn, int64_t template_id) {
  struct Layout {
    std::string_view before;   // the contexts
    std::string_view between;  // them and the question
  };
  constexpr std::array<Layout, kPromptTemplates + 1> kLayouts = {{
      {"", ""},
      {"User: Answer based on context:\n\n", ""},
      {"User: ", "Answer this question based on the article: "},
      {"User: ", ""},
      {"User: ", "Answer this question: "},
      {"User: Read this article and answer this question ", ""},
      {"User: ", "Based on the above article, answer a question. "},
      {"User: Context: ", "Question: "},
  }};
  const Layout& layout = kLayouts[static_cast<size_t>(template_id)];
  return preamble + std::string(layout.before) + context + std::string(layout.between) + turn;
}

}  // namespace

std::string_view prompt_preamble(PromptVariant variant) {
  return variant == PromptVariant::kRetro ? kRetroPreamble : kPlainPreamble;
}

std::vector<int32_t> prompt_ids(const Dialogue& dialogue, const PromptOptions& options,
                                int64_t answer_length, int64_t seq_length,
                                const Tokenizer& tokenizer) {
  invariant(options.template_id >= 0 && options.template_id <= kPromptTemplates,
            "a prompt has one of the known layouts");
  std::string preamble = std::string(prompt_preamble(options.variant));
  std::string turn;
  if (options.is_short_format) {
    const std::string mark = dialogue.question.ends_with("?") ? "" : "?";
    preamble.clear();
    turn = "Question: " + dialogue.question + mark + " Answer: The answer is";
  } else if (is_dialogue(options.dataset)) {
    return tokenizer.encode(preamble + dialogue.question);
  } else {
    turn = turn_of(dialogue.question, options);
  }
  if (options.ft_neighbours == 0) return tokenizer.encode(preamble + turn);

  std::string context = dialogue.contexts.empty() ? "\n\n" : "";
  for (int64_t i = 0; i < std::min(options.ft_neighbours, std::ssize(dialogue.contexts)); ++i) {
    context += dialogue.contexts[static_cast<size_t>(i)] + "\n\n";
  }
  const auto length = [&](const std::string& text) { return std::ssize(tokenizer.encode(text)); };
  std::vector<int32_t> ids = tokenizer.encode(context);
  const int64_t room = seq_length - answer_length - length(turn) - length(preamble);
  if (room < std::ssize(ids)) ids.resize(static_cast<size_t>(std::max<int64_t>(room, 0)));
  context = tokenizer.decode(ids);
  const int64_t layout = options.is_short_format ? 0 : options.template_id;
  return tokenizer.encode(laid_out(preamble, context, turn, layout));
}

std::vector<int64_t> context_ids(const Dialogue& dialogue, int64_t first, int64_t k, int64_t r,
                                 int32_t fill, const Tokenizer& tokenizer) {
  std::vector<int64_t> all(static_cast<size_t>(k * r), fill);
  for (int64_t j = 0; j < k && first + j < std::ssize(dialogue.contexts); ++j) {
    const std::vector<int32_t> ids =
        tokenizer.encode(dialogue.contexts[static_cast<size_t>(first + j)]);
    std::copy_n(ids.begin(), std::min(r, std::ssize(ids)), all.begin() + j * r);
  }
  return all;
}

}  // namespace megatron
