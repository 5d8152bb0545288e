#include "annex/retro/commands/retro_generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "annex/retro/commands/dialogue_flags.h"
#include "annex/retro/model/retrieval.h"
#include "annex/retro/tasks/dialogue_task.h"
#include "megatron/cli/agreement.h"
#include "megatron/cli/json_lines.h"
#include "megatron/cli/model_flags.h"
#include "megatron/cli/text_flags.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/run/collectively.h"
#include "megatron/tasks/detokenize.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

constexpr const char* kRetroGenerateUsage =
    "megatron retro-generate --load DIR --task NAME --sample-input-file FILE [flags]";

struct RetroGenerateFlags {
  ModelFlags model;
  DialogueFlags dialogues;
  std::optional<double> attention_gate;
  int64_t num_neighbors = 0;
  std::string sample_input_file;
  std::string sample_output_file;
  int64_t gen_start_idx = 0;
  int64_t num_gen = -1;
  int64_t seq_length = 0;
  int64_t out_seq_length = 256;
  int64_t max_new_tokens = 66;
  DrawFlags draws;
  bool beam_search = false;
  int64_t beam_size = 5;
};

FlagTable flags_of(RetroGenerateFlags& flags) {
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("retro");
  table.add_optional("--retro-attention-gate", flags.attention_gate,
                     "Factor of what is read from neighbours; 0: they are not looked at. That of "
                     "the tuning if not given.");
  table.add_optional("--retro-num-neighbors", flags.num_neighbors,
                     "Contexts that the encoder reads; that of the tuning if not given.");
  add_dialogue_flags(table, flags.dialogues);
  table.group("questions and answers");
  table.add("--sample-input-file", flags.sample_input_file,
            "The questions: a JSON array, or an item a line in a file .txt or .jsonl.");
  table.add_optional("--sample-output-file", flags.sample_output_file,
                     "The answers, one a line; the input file's name with .out if not given.");
  table.add("--gen-start-idx", flags.gen_start_idx, "Number of the first question, from 0.");
  table.add("--num-gen", flags.num_gen, "Questions to answer; -1: all.");
  table.add_optional("--seq-length", flags.seq_length,
                     "Tokens that contexts, question and answer may have together; those of the "
                     "training if not given.");
  table.add("--out-seq-length", flags.out_seq_length, "Tokens that contexts leave for the answer.");
  table.add("--max-new-tokens", flags.max_new_tokens,
            "Most tokens of an answer, which is never longer than its prompt.");
  table.group("generation");
  add_draw_flags(table, flags.draws);
  table.add_switch("--beam-search", flags.beam_search, "Search the most probable answer.");
  table.add("--beam-size", flags.beam_size, "Texts that the search keeps.");
  add_unread_flags(table, flags.dialogues.without_effect);
  for (const char* name : {"--recompute", "--debug-gen", "--retro-add-retriever"}) {
    table.add_entry(name, FlagType::kSwitch, flags.dialogues.without_effect, false, "Not needed.");
  }
  table.add_entry("--epsilon", FlagType::kFloat, flags.dialogues.without_effect, 0.01,
                  "Not needed.");
  table.add_entry("--num-samples", FlagType::kInt, flags.dialogues.without_effect, int64_t{0},
                  "Not needed.");
  table.add_entry("--genfile", FlagType::kText, flags.dialogues.without_effect, std::string(),
                  "Not needed.");
  return table;
}

std::vector<std::string> problems(const RetroGenerateFlags& flags) {
  std::vector<std::string> found = cli::problems(flags.dialogues);
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  require(!flags.sample_input_file.empty(),
          "--sample-input-file is required: the file of the questions");
  require(!flags.dialogues.task.empty() || flags.dialogues.short_format,
          "--task is required: the name of the data set, which decides how questions are put");
  require(flags.gen_start_idx >= 0,
          fmt::format("--gen-start-idx {} must be 0 or more", flags.gen_start_idx));
  const auto positive = [&](const char* flag, int64_t value) {
    require(value > 0, fmt::format("{} {} must be greater than 0", flag, value));
  };
  positive("--out-seq-length", flags.out_seq_length);
  positive("--max-new-tokens", flags.max_new_tokens);
  if (flags.beam_search) positive("--beam-size", flags.beam_size);
  for (std::string& problem : cli::problems(flags.draws.sampling)) {
    found.push_back(std::move(problem));
  }
  return found;
}

// Input read by rank 0 and broadcast: an array of {"prompt": [...], "neighbors": [...]}.
json read_questions(const RetroGenerateFlags& flags, const LoadedModel& loaded) {
  const TransformerConfig& model = loaded.model->config();
  const Tokenizer& tokenizer = loaded.required_tokenizer();
  DialogueSampleOptions sample =
      resolved_sample_options(flags.dialogues.sample(PromptVariant::kPlain), model, tokenizer);
  if (flags.seq_length > 0) sample.seq_length = flags.seq_length;
  const std::vector<Dialogue> dialogues =
      read_dialogues(flags.sample_input_file, flags.dialogues.fields(false));
  const auto begin = std::min<int64_t>(flags.gen_start_idx, std::ssize(dialogues));
  const int64_t rest = std::ssize(dialogues) - begin;
  const int64_t count = flags.num_gen > 0 ? std::min(flags.num_gen, rest) : rest;
  json questions = json::array();
  for (int64_t i = begin; i < begin + count; ++i) {
    const Dialogue& dialogue = dialogues[static_cast<size_t>(i)];
    const std::vector<int32_t> prompt =
        prompt_ids(dialogue, sample.prompt, flags.out_seq_length, sample.seq_length, tokenizer);
    try {
      two_chunks(std::ssize(prompt), model);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: item {}: {}", flags.sample_input_file, i, error.what()));
    }
    questions.push_back(
        {{"prompt", prompt},
         {"neighbors",
          context_ids(dialogue, sample.reuse_top ? 0 : sample.prompt.ft_neighbours,
                      sample.num_neighbors, sample.neighbor_length, sample.eod, tokenizer)}});
  }
  return {{"questions", questions}, {"vocab_size", loaded.vocab_size}, {"eod", sample.eod}};
}

std::vector<Request> requests_of(const RetroGenerateFlags& flags, const json& read,
                                 const TransformerConfig& model) {
  Request base;
  flags.draws.apply(base);
  base.vocab_size = read.at("vocab_size");
  base.stop_tokens = {read.at("eod").get<int32_t>()};
  if (flags.beam_search) base.beams = BeamOptions{flags.beam_size, flags.draws.length_penalty};
  std::vector<Request> requests;
  for (const json& question : read.at("questions")) {
    Request& one = requests.emplace_back(base);
    one.prompt = question.at("prompt").get<std::vector<int32_t>>();
    one.row = std::ssize(requests) - 1;
    const TwoChunks chunks = two_chunks(std::ssize(one.prompt), model);
    one.max_new_tokens = std::min(flags.max_new_tokens, chunks.total - std::ssize(one.prompt));
  }
  return requests;
}

std::vector<Generation> generations(const RetroGenerateFlags& flags, const LoadedModel& loaded,
                                    const json& read, std::span<const Request> requests) {
  const InferenceModel model = loaded.inference();
  const RetroConfig& retro = model.config().retro;
  std::vector<Generation> made;
  if (flags.beam_search) {
    for (const Request& one : requests) {
      const Hypothesis best = search_beams(model, one).front();
      made.push_back({best.tokens, std::ssize(one.prompt), best.is_stopped});
    }
    return made;
  }
  if (!retro.reads_neighbors()) return generate(model, requests);
  for (const Request& one : requests) {
    const json& question = read.at("questions").at(made.size());
    made.push_back(generate_with_neighbors(
        model, one,
        {question.at("neighbors").get<std::vector<int64_t>>(), retro.neighbor_length()}));
  }
  return made;
}

// The continuation on one line.
std::string answer_of(const Generation& made, int32_t eod, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = made.tokens;
  const bool is_ended = made.is_stopped && ids.back() == eod;
  if (is_ended) ids.pop_back();
  const size_t begin =
      tokenizer.decode(std::span(ids).first(static_cast<size_t>(made.prompt_length))).size();
  std::string answer = tokenizer.decode(ids).substr(begin);
  if (is_ended) answer = std::string(stripped(answer));
  std::ranges::replace(answer, '\n', ' ');
  return answer;
}

}  // namespace

int retro_generate(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  RetroGenerateFlags flags;
  FlagTable table = flags_of(flags);
  const CommonCommand command = {.usage = kRetroGenerateUsage,
                                 .takes_training_words = true,
                                 .problems = [&] { return problems(flags); }};
  if (!parse_common_flags(table, command, words, world)) return 0;
  flags.model.retro_attention_gate = flags.attention_gate;
  flags.model.retro_num_neighbors = flags.num_neighbors;
  const LoadedModel loaded = load_model(flags.model, world);
  const TransformerConfig& model = loaded.model->config();
  collectively([&] {
    if (!model.retro.reads_neighbors()) return;
    if (loaded.parallel.pipeline.size() > 1 || flags.beam_search) {
      throw ConfigError(
          "neighbours are read on one stage and without --beam-search; give "
          "--retro-attention-gate 0, or remove these flags");
    }
  });
  json read;
  on_first_rank(world, [&] { read = read_questions(flags, loaded); });
  read = shared(read, world);
  const std::vector<Request> requests = requests_of(flags, read, model);
  const std::vector<Generation> made = generations(flags, loaded, read, requests);
  on_first_rank(world, [&] {
    std::string text;
    for (const Generation& one : made) {
      text += answer_of(one, read.at("eod"), *loaded.tokenizer) + "\n";
    }
    const std::string file = flags.sample_output_file.empty() ? flags.sample_input_file + ".out"
                                                              : flags.sample_output_file;
    write_text_atomically(file, text);
    print_line(fmt::format("{} answers are in {}", made.size(), file));
  });
  return 0;
}

}  // namespace megatron::cli
