#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/inference/generate.h"
#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::cli {

// What tools/generate_samples_gpt.py of Megatron-DeepSpeed writes: texts without a prompt
// (--num-samples) as JSON lines, or the continuations of a file's lines (--sample-input-file). For
// lines {"prompt": {"text": ...}} the continuations are JSON lines, too, as the script of that name
// in Megatron-LM writes them.
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

// The contexts: end-of-document tokens, or the lines of the file. Lines without tokens or with half
// as many as the model's positions are left out with a warning; JSON prompts must have less than
// the positions. Throws IoError and ConfigError.
std::vector<std::vector<int32_t>> sample_prompts(const SampleFlags& flags,
                                                 const Tokenizer& tokenizer, int64_t positions);
// A sample ends one token before the model's positions do.
int64_t num_new_tokens(const SampleFlags& flags, size_t prompt_length, int64_t positions);
// Writes the file. Throws IoError.
void write_samples(const SampleFlags& flags, const Tokenizer& tokenizer,
                   std::span<const Generation> rows, int64_t positions);

}  // namespace megatron::cli
