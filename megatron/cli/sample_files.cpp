#include "megatron/cli/sample_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/core/log.h"
#include "megatron/core/next_line.h"

namespace megatron::cli {
namespace {

bool has_prompts(const SampleFlags& flags) { return !flags.sample_input_file.empty(); }

std::string output_of(const SampleFlags& flags) {
  if (!has_prompts(flags)) return flags.genfile;
  return flags.sample_output_file.empty() ? flags.sample_input_file + ".out"
                                          : flags.sample_output_file;
}

// The tokens that were drawn, without the end of the document.
std::span<const int32_t> continuation(const Generation& row) {
  const std::span<const int32_t> drawn =
      std::span(row.tokens).subspan(static_cast<size_t>(row.prompt_length));
  return row.is_stopped ? drawn.first(drawn.size() - 1) : drawn;
}

// The text of a line {"prompt": {"text": "..."}}; nothing if the line is none.
std::optional<std::string> json_prompt(const std::string& line) {
  const nlohmann::json object = try_parse_json(line, kJsonLine);
  const bool has_prompt = object.is_object() && object.contains("prompt") &&
                          object["prompt"].is_object() && object["prompt"].contains("text") &&
                          object["prompt"]["text"].is_string();
  if (!has_prompt) return std::nullopt;
  return object["prompt"]["text"].get<std::string>();
}

std::ifstream opened(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw IoError(fmt::format("{}: cannot open; check the path", file));
  return in;
}

// True if the file starts with a JSON prompt; then all its lines must have one.
bool has_json_prompts(const SampleFlags& flags) {
  std::string line;
  std::ifstream in = opened(flags.sample_input_file);
  return next_line(in, line, 1, flags.sample_input_file) && json_prompt(line).has_value();
}

// An empty prompt is an end of document.
std::vector<int32_t> ids_of_json_prompt(const std::string& line, const std::string& place,
                                        const Tokenizer& tokenizer, int64_t positions) {
  const std::optional<std::string> text = json_prompt(line);
  if (!text) throw ConfigError(place + ": the line is no {\"prompt\": {\"text\": \"...\"}}");
  std::vector<int32_t> ids = tokenizer.encode(*text);
  if (ids.empty()) ids.push_back(tokenizer.eod());
  if (std::ssize(ids) >= positions - 1) {
    throw ConfigError(
        fmt::format("{}: {} tokens; the model's {} positions have room for prompts "
                    "of {}; shorten it",
                    place, ids.size(), positions, positions - 2));
  }
  return ids;
}

// Compat: examples/detxoify_lm/generate_samples_gpt.py of Megatron-LM core_r0.5.0.
std::string continued_prompt(const Generation& row, int64_t id, const Tokenizer& tokenizer) {
  const auto prompt = std::span(row.tokens).first(static_cast<size_t>(row.prompt_length));
  nlohmann::ordered_json sample;
  const std::string prompt_text = prompt.front() == tokenizer.eod() ? "" : tokenizer.decode(prompt);
  sample["text"] = tokenizer.decode(continuation(row));
  sample["all_text"] = prompt_text + sample["text"].get<std::string>();
  sample["prompt"] = prompt_text;
  sample["id"] = id;
  return sample.dump();
}

}  // namespace

void add_sample_flags(FlagTable& table, SampleFlags& flags) {
  table.group("samples");
  table.add("--num-samples", flags.num_samples,
            "Texts without a prompt to write to --genfile; with --sample-input-file, the number of "
            "its lines to continue, all if not given.");
  table.add_optional("--genfile", flags.genfile, "File for --num-samples, a JSON object a line.");
  table.add_optional("--sample-input-file", flags.sample_input_file,
                     "Text file; each line is continued. If its lines are {\"prompt\": {\"text\": "
                     "...}}, so are the continuations: {\"text\", \"all_text\", \"prompt\", "
                     "\"id\"}.");
  table.add_optional("--sample-output-file", flags.sample_output_file,
                     "File for the continuations instead of <input>.out.");
  table.add("--out-seq-length", flags.out_seq_length,
            "Tokens to add in both cases; the model's positions limit them, too.");
  table.add_switch("--recompute", flags.recompute, "Without effect: keys and values are kept.")
      .no_effect("keys and values are always kept");
}

bool is_sample_run(const SampleFlags& flags) {
  return flags.num_samples > 0 || !flags.sample_input_file.empty();
}

std::vector<std::string> problems(const SampleFlags& flags) {
  std::vector<std::string> found;
  if (flags.num_samples > 0 && !has_prompts(flags) && flags.genfile.empty()) {
    found.push_back("--num-samples needs --genfile, the file for the samples");
  }
  if (!flags.genfile.empty() && has_prompts(flags)) {
    found.push_back(
        fmt::format("--genfile {} and --sample-input-file {} exclude each other; leave out "
                    "--genfile: the continuations go to {}, which --sample-output-file changes",
                    flags.genfile, flags.sample_input_file, output_of(flags)));
  }
  if (flags.out_seq_length < 1) {
    found.push_back(fmt::format("--out-seq-length {} must be 1 or more", flags.out_seq_length));
  }
  return found;
}

std::vector<std::vector<int32_t>> sample_prompts(const SampleFlags& flags,
                                                 const Tokenizer& tokenizer, int64_t positions) {
  if (!has_prompts(flags)) {
    return {static_cast<size_t>(flags.num_samples), std::vector<int32_t>{tokenizer.eod()}};
  }
  const bool are_json = has_json_prompts(flags);
  std::ifstream in = opened(flags.sample_input_file);
  std::vector<std::vector<int32_t>> prompts;
  std::string line;
  const auto is_enough = [&] {
    return flags.num_samples > 0 && std::ssize(prompts) == flags.num_samples;
  };
  for (int64_t number = 1; !is_enough() && next_line(in, line, number, flags.sample_input_file);
       ++number) {
    if (are_json) {
      const std::string place = fmt::format("{}:{}", flags.sample_input_file, number);
      prompts.push_back(ids_of_json_prompt(line, place, tokenizer, positions));
      continue;
    }
    std::vector<int32_t> ids = tokenizer.encode(line);
    const auto length = static_cast<int64_t>(ids.size());
    if (length > 0 && length < positions / 2) {
      prompts.push_back(std::move(ids));
    } else {
      warn(fmt::format("{}:{}: left out: {} tokens, between 1 and {} are continued",
                       flags.sample_input_file, number, length, positions / 2 - 1));
    }
  }
  return prompts;
}

int64_t num_new_tokens(const SampleFlags& flags, size_t prompt_length, int64_t positions) {
  const auto length = static_cast<int64_t>(prompt_length);
  return std::max<int64_t>(1, std::min(flags.out_seq_length, positions - 1 - length));
}

void write_samples(const SampleFlags& flags, const Tokenizer& tokenizer,
                   std::span<const Generation> rows, int64_t positions) {
  const std::string file = output_of(flags);
  FileWriter out(file);
  const bool are_json = has_prompts(flags) && has_json_prompts(flags);
  int64_t id = 0;
  for (const Generation& row : rows) {
    if (are_json) {
      out.write(continued_prompt(row, id++, tokenizer) + '\n');
    } else if (!has_prompts(flags)) {
      // Compat: Megatron-DeepSpeed drops the first and the last token, whatever the last one is.
      const auto length = static_cast<int64_t>(row.tokens.size());
      const std::span<const int32_t> inner =
          std::span(row.tokens).subspan(1, static_cast<size_t>(std::max<int64_t>(0, length - 2)));
      nlohmann::ordered_json sample;
      sample["text"] = tokenizer.decode(inner);
      sample["length"] = length - 1;
      sample["finished"] = length < positions - 1;
      out.write(sample.dump() + '\n');
    } else {
      const auto prompt = std::span(row.tokens).first(static_cast<size_t>(row.prompt_length));
      out.write(fmt::format("\nContext:{}\n\nMegatron-LM:{}\n", tokenizer.decode(prompt),
                            tokenizer.decode(continuation(row))));
    }
  }
  out.commit();
  print_line(fmt::format("{} samples are in {}", rows.size(), file));
}

}  // namespace megatron::cli
