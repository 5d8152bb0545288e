#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/inference/generate.h"
#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::cli {

// The files of Megatron-DeepSpeed's tools/generate_samples_gpt.py: texts without a prompt
// (--num-samples) as JSON lines, or the continuations of a file's lines (--sample-input-file).
// Continuations of lines {"prompt": {"text": ...}} are JSON lines, too, as in Megatron-LM's script
// of that name.
struct SampleFlags {
  int64_t num_samples = 0;
  std::string genfile;
  std::string sample_input_file;
  std::string sample_output_file;
  int64_t out_seq_length = 1024;
  bool recompute = false;
};

void add_sample_flags(FlagTable& table, SampleFlags& flags);
bool is_sample_run(const SampleFlags& flags);
std::vector<std::string> problems(const SampleFlags& flags);

// The prompts: end-of-document tokens, or the lines of the file. Skips, with a warning, empty lines
// and lines of at least half the model's positions; JSON prompts must be shorter than the
// positions. Throws IoError and ConfigError.
std::vector<std::vector<int32_t>> sample_prompts(const SampleFlags& flags,
                                                 const Tokenizer& tokenizer, int64_t positions);
// A sample ends one token before the end of the model's positions.
int64_t num_new_tokens(const SampleFlags& flags, size_t prompt_length, int64_t positions);
// Writes the file. Throws IoError.
void write_samples(const SampleFlags& flags, const Tokenizer& tokenizer,
                   std::span<const Generation> rows, int64_t positions);

}  // namespace megatron::cli
