#include "megatron/cli/generate.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megatron/cli/agreement.h"
#include "megatron/cli/command.h"
#include "megatron/cli/json_lines.h"
#include "megatron/cli/model_flags.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/inference/generate.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

struct GenerateFlags {
  ModelFlags model;
  std::vector<std::string> prompts;
  std::string prompt_file;
  int64_t max_new_tokens = 64;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 0.0;
  bool greedy = false;
  bool ignore_eod = false;
  int64_t seed = 1234;
  bool as_json = false;
  bool logprobs = false;
};

FlagTable flags_of(GenerateFlags& flags) {
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("prompts");
  table.add("--prompt", flags.prompts, "Texts to continue.").none();
  table.add_optional(
      "--prompt-file", flags.prompt_file,
      "File with one prompt per line, or JSON lines {\"text\": ...} or {\"ids\": [...]}; "
      "- is standard input.");
  table.group("generation");
  table.add("--max-new-tokens,--tokens-to-generate", flags.max_new_tokens,
            "Tokens to add to each prompt.");
  table.add_switch("--greedy", flags.greedy, "Take the most probable token; same as --top-k 1.");
  table.add("--temperature", flags.temperature, "Logits are divided by it.");
  table.add("--top-k", flags.top_k, "Draw among the k most probable tokens; 0: among all.");
  table.add("--top-p", flags.top_p,
            "Draw among the most probable tokens whose probabilities sum to p; 0: among all.");
  table.add_switch("--ignore-eod", flags.ignore_eod, "Continue after the end-of-document token.");
  table.add("--seed", flags.seed, "Seed of the draws.");
  table.group("output");
  table.add_switch("--json", flags.as_json, "Print one JSON object per prompt instead of text.");
  table.add_switch("--logprobs", flags.logprobs,
                   "With --json: log-probabilities of all tokens after the first.");
  return table;
}

std::vector<std::string> problems(const GenerateFlags& flags) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  require(flags.temperature > 0,
          fmt::format("--temperature {} must be above 0; use --greedy for no randomness",
                      flags.temperature));
  require(flags.top_k >= 0, fmt::format("--top-k {} must be 0 or more", flags.top_k));
  require(flags.top_p >= 0 && flags.top_p <= 1,
          fmt::format("--top-p {} must be between 0 and 1", flags.top_p));
  require(flags.top_k == 0 || flags.top_p == 0, "--top-k and --top-p exclude each other; give one");
  require(flags.max_new_tokens >= 0,
          fmt::format("--max-new-tokens {} must be 0 or more", flags.max_new_tokens));
  require(!flags.prompts.empty() || !flags.prompt_file.empty(),
          "there is nothing to continue; give --prompt \"text\" or --prompt-file");
  return found;
}

std::vector<std::vector<int32_t>> read_prompts(const GenerateFlags& flags, const LoadedModel& gpt) {
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : flags.prompts) {
    prompts.push_back(gpt.required_tokenizer().encode(text));
  }
  if (flags.prompt_file.empty()) return prompts;
  each_line(flags.prompt_file, [&](const std::string& line, int64_t number) {
    about_line(flags.prompt_file, number, [&] {
      prompts.push_back(line.starts_with("{") ? ids_of(object_of(line), gpt)
                                              : gpt.required_tokenizer().encode(line));
      if (prompts.back().empty()) {
        throw ConfigError("the prompt has no tokens; remove the line or give it some text");
      }
    });
  });
  return prompts;
}

void print_generation(const GenerateFlags& flags, const LoadedModel& gpt, const Generation& row) {
  if (!flags.as_json) {
    print_line(gpt.tokenizer != nullptr ? gpt.tokenizer->decode(row.tokens)
                                        : json(row.tokens).dump());
    return;
  }
  json object = {{"ids", row.tokens},
                 {"prompt_tokens", row.prompt_length},
                 {"finish_reason", row.is_stopped ? "stop" : "length"}};
  if (gpt.tokenizer != nullptr) object["text"] = gpt.tokenizer->decode(row.tokens);
  if (flags.logprobs) object["logprobs"] = row.log_probabilities;
  print_line(object.dump());
}

}  // namespace

int generate_text(std::span<const std::string> words, const comm::Group& world) {
  const Speaking on_first(world.rank() == 0);
  GenerateFlags flags;
  FlagTable table = flags_of(flags);
  expect_same_words(words, world);
  const bool has_work = in_common([&] {
    if (!parse_flags(table, "megatron generate --load DIR --prompt TEXT ... [flags]", words)) {
      return false;
    }
    const std::vector<std::string> wrong = problems(flags);
    if (!wrong.empty()) throw ConfigError(wrong);
    return true;
  });
  if (!has_work) return 0;

  const LoadedModel gpt = load_model(flags.model, world);
  json request;
  if (world.rank() == 0) {
    request["prompts"] = read_prompts(flags, gpt);
    request["vocab_size"] = gpt.vocab_size;
    request["stop_tokens"] = json::array();
    if (gpt.tokenizer != nullptr && !flags.ignore_eod) {
      const auto eod = gpt.tokenizer->special_id(SpecialToken::kEod);
      if (eod) request["stop_tokens"].push_back(*eod);
    }
  }
  request = shared(request, world);
  const auto prompts = request.at("prompts").get<std::vector<std::vector<int32_t>>>();
  GenerateOptions options;
  options.max_new_tokens = flags.max_new_tokens;
  options.sampling = {.temperature = flags.temperature,
                      .top_k = flags.greedy ? 1 : flags.top_k,
                      .top_p = flags.top_p};
  options.seed = static_cast<uint64_t>(flags.seed);
  options.vocab_size = request.at("vocab_size");
  options.stop_tokens = request.at("stop_tokens").get<std::vector<int32_t>>();
  options.return_log_probabilities = flags.logprobs;
  for (const Generation& row : generate(gpt.inference(), prompts, options)) {
    if (world.rank() == 0) print_generation(flags, gpt, row);
  }
  return 0;
}

}  // namespace megatron::cli
