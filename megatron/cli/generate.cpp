#include "megatron/cli/generate.h"

#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "megatron/cli/agreement.h"
#include "megatron/cli/command.h"
#include "megatron/cli/model_flags.h"
#include "megatron/comm/collectives.h"
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
      "File with a prompt a line, or JSON lines {\"text\": ...} or {\"ids\": [...]}; "
      "- is standard input.");
  table.group("generation");
  table.add("--max-new-tokens,--tokens-to-generate", flags.max_new_tokens,
            "Tokens to add to each prompt.");
  table.add_switch("--greedy", flags.greedy, "Take the most probable token; same as --top-k 1.");
  table.add("--temperature", flags.temperature, "Logits are divided by it.");
  table.add("--top-k", flags.top_k, "Draw among the k most probable tokens; 0: among all.");
  table.add("--top-p", flags.top_p,
            "Draw among the most probable tokens that sum up to p; 0: among all.");
  table.add_switch("--ignore-eod", flags.ignore_eod, "Go on after the end-of-document token.");
  table.add("--seed", flags.seed, "Of the draws.");
  table.group("output");
  table.add_switch("--json", flags.as_json, "One JSON object a prompt instead of text.");
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

// Calls f(line, number) for every line of a file, or of standard input for "-".
void each_line(const std::string& file, const std::function<void(const std::string&, int64_t)>& f) {
  std::ifstream stream;
  if (file != "-") {
    stream.open(file);
    if (!stream) throw IoError(fmt::format("{}: cannot open; check the path", file));
  }
  std::istream& in = file == "-" ? std::cin : stream;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) f(line, number);
}

// A number that is no id of any vocabulary would else become one by wrapping around.
int32_t id_of(const json& value) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  const bool is_id = value.is_number_integer() && value >= 0 && value <= kLargest;
  if (is_id) return value.get<int32_t>();
  throw ConfigError(
      fmt::format("token id {} must be an integer between 0 and {}", value.dump(), kLargest));
}

// The JSON object of a line. Throws ConfigError.
json object_of(const std::string& line) {
  json value = json::parse(line, nullptr, false);
  if (value.is_object()) return value;
  throw ConfigError(
      value.is_discarded()
          ? "this is no JSON; write a line as {\"text\": \"...\"} or {\"ids\": [1, 2, 3]}"
          : "this JSON is no object; write a line as {\"text\": \"...\"} or {\"ids\": [1, 2, 3]}");
}

// The ids of a JSON object {"ids": [...]} or {"text": "..."}.
std::vector<int32_t> ids_of(const json& object, const LoadedModel& gpt) {
  if (object.contains("ids")) {
    if (!object.at("ids").is_array()) throw ConfigError("\"ids\" must be a list of integers");
    std::vector<int32_t> ids;
    for (const json& value : object.at("ids")) ids.push_back(id_of(value));
    return ids;
  }
  if (object.contains("text")) {
    if (!object.at("text").is_string()) throw ConfigError("\"text\" must be a string");
    return gpt.required_tokenizer().encode(object.at("text").get<std::string>());
  }
  throw ConfigError("an object needs \"ids\" or \"text\"");
}

// Calls f and adds to its errors which line of a file they are about.
template <class F>
void about_line(const std::string& file, int64_t number, const F& f) {
  const std::string place = fmt::format("{}:{}", file == "-" ? "standard input" : file, number);
  try {
    f();
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", place, error.what()));
  }
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

// What rank 0 has, on all ranks.
json shared(const json& value, const comm::Group& world) {
  if (world.size() == 1) return value;
  const auto broadcast = [&](TensorView bytes) { comm::broadcast(bytes, 0, world, Stream{}); };
  std::string text = value.dump();
  auto size = static_cast<int64_t>(text.size());
  broadcast({&size, {1}, DType::kInt64});
  text.resize(static_cast<size_t>(size));
  broadcast({text.data(), {size}, DType::kUInt8});
  return json::parse(text);
}

struct ScoreFlags {
  ModelFlags model;
  std::string input = "-";
};

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

int score_text(std::span<const std::string> words, const comm::Group& world) {
  const Speaking on_first(world.rank() == 0);
  ScoreFlags flags;
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("input");
  table.add("--input", flags.input,
            "JSON lines {\"ids\": [...]} or {\"text\": ...}; - is standard input.");
  expect_same_words(words, world);
  const bool has_work = in_common([&] {
    return parse_flags(table, "megatron score --load DIR [--input FILE] [flags]", words);
  });
  if (!has_work) return 0;

  const LoadedModel gpt = load_model(flags.model, world);
  const auto score_line = [&](const json& line) {
    about_line(flags.input, line.at("number"), [&] {
      const Score result = score(gpt.inference(), line.at("ids").get<std::vector<int32_t>>());
      nlohmann::ordered_json object;
      object["loss"] = result.loss;
      object["logprobs"] = result.log_probabilities;
      print_line(object.dump());
    });
  };
  const json end;
  if (world.rank() == 0) {
    each_line(flags.input, [&](const std::string& text, int64_t number) {
      json line = {{"number", number}};
      about_line(flags.input, number, [&] { line["ids"] = ids_of(object_of(text), gpt); });
      score_line(shared(line, world));
    });
    shared(end, world);
  } else {
    for (json line = shared(end, world); line != end; line = shared(end, world)) score_line(line);
  }
  return 0;
}

}  // namespace megatron::cli
