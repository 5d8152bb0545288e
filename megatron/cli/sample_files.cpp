#include "megatron/cli/sample_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::cli {
namespace {

std::string output_of(const SampleFlags& flags) {
  if (flags.num_samples > 0) return flags.genfile;
  return flags.sample_output_file.empty() ? flags.sample_input_file + ".out"
                                          : flags.sample_output_file;
}

// The tokens that were drawn, without the end of the document.
std::span<const int32_t> continuation(const Generation& row) {
  const std::span<const int32_t> drawn =
      std::span(row.tokens).subspan(static_cast<size_t>(row.prompt_length));
  return row.is_stopped ? drawn.first(drawn.size() - 1) : drawn;
}

}  // namespace

void add_sample_flags(FlagTable& table, SampleFlags& flags) {
  table.group("samples");
  table.add("--num-samples", flags.num_samples, "Texts without a prompt to write to --genfile.");
  table.add_optional("--genfile", flags.genfile, "File for --num-samples, a JSON object a line.");
  table.add_optional("--sample-input-file", flags.sample_input_file,
                     "Text file; each line is continued.");
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
  if (flags.num_samples > 0 && flags.genfile.empty()) {
    found.push_back("--num-samples needs --genfile, the file for the samples");
  }
  if (flags.num_samples > 0 && !flags.sample_input_file.empty()) {
    found.push_back("--num-samples and --sample-input-file exclude each other; give one");
  }
  if (flags.out_seq_length < 1) {
    found.push_back(fmt::format("--out-seq-length {} must be 1 or more", flags.out_seq_length));
  }
  return found;
}

std::vector<std::vector<int32_t>> sample_prompts(const SampleFlags& flags,
                                                 const Tokenizer& tokenizer, int64_t positions) {
  if (flags.num_samples > 0) {
    return {static_cast<size_t>(flags.num_samples), std::vector<int32_t>{tokenizer.eod()}};
  }
  std::ifstream in(flags.sample_input_file);
  if (!in) throw IoError(fmt::format("{}: cannot open; check the path", flags.sample_input_file));
  std::vector<std::vector<int32_t>> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
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
  std::ofstream out(file, std::ios::binary);
  for (const Generation& row : rows) {
    if (flags.num_samples > 0) {
      // Compat: Megatron-DeepSpeed drops the first and the last token, whatever the last one is.
      const auto length = static_cast<int64_t>(row.tokens.size());
      const std::span<const int32_t> inner =
          std::span(row.tokens).subspan(1, static_cast<size_t>(std::max<int64_t>(0, length - 2)));
      nlohmann::ordered_json sample;
      sample["text"] = tokenizer.decode(inner);
      sample["length"] = length - 1;
      sample["finished"] = length < positions - 1;
      out << sample.dump() << '\n';
    } else {
      const auto prompt = std::span(row.tokens).first(static_cast<size_t>(row.prompt_length));
      out << "\nContext:" << tokenizer.decode(prompt)
          << "\n\nMegatron-LM:" << tokenizer.decode(continuation(row)) << '\n';
    }
  }
  out.flush();
  if (!out) throw IoError(fmt::format("{}: cannot write; check the path and the space", file));
  print_line(fmt::format("{} samples are in {}", rows.size(), file));
}

}  // namespace megatron::cli
