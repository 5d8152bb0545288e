#include "megatron/cli/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "megatron/cli/agreement.h"
#include "megatron/cli/classify.h"
#include "megatron/cli/json_lines.h"
#include "megatron/cli/model_flags.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/tasks/detokenize.h"
#include "megatron/tasks/zero_shot.h"
#include "megatron/tokenizers/unicode_text.h"
#include "megatron/training/progress_bar.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

constexpr const char* kWikiTextTask = "WIKITEXT103";
constexpr const char* kLambadaTask = "LAMBADA";

enum class Rules { kByPath, kNone, kPennTreebank, kWikiText };

struct EvaluateFlags {
  ModelFlags model;
  std::string task;
  std::vector<std::string> valid_data;
  Rules detokenizer = Rules::kByPath;
  int64_t overlapping_eval = 32;
  bool strict_lambada = false;
  int64_t seq_length = 0;
  int64_t micro_batch_size = 4;
  int64_t log_interval = 100;
};

FlagTable flags_of(EvaluateFlags& flags) {
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("task");
  table
      .add("--task", flags.task,
           "WIKITEXT103 (perplexity of a text) or LAMBADA (accuracy of last words). MNLI, QQP and "
           "RACE train a BERT: see `megatron evaluate --task MNLI --help`.")
      .required();
  table
      .add("--valid-data", flags.valid_data,
           "The file: a text for WIKITEXT103, JSON lines {\"text\": ...} for LAMBADA.")
      .required();
  table.add("--overlapping-eval", flags.overlapping_eval,
            "WIKITEXT103: tokens from one window to the next.");
  table.add_choice("--detokenizer", flags.detokenizer,
                   {{"auto", Rules::kByPath},
                    {"none", Rules::kNone},
                    {"ptb", Rules::kPennTreebank},
                    {"wiki", Rules::kWikiText}},
                   "WIKITEXT103: rules that undo the blanks between the words of the file; auto: "
                   "those of the first of ptb, wiki and lambada (none) in its path.");
  table.add_switch("--strict-lambada", flags.strict_lambada,
                   "LAMBADA: the whole last word instead of its last token.");
  table.add_optional("--seq-length", flags.seq_length,
                     "Tokens that the model sees at once. If not given: all its positions.");
  table.add("--micro-batch-size", flags.micro_batch_size, "Rows of one forward pass.");
  table.add("--log-interval", flags.log_interval, "Batches from one line of progress to the next.");
  return table;
}

std::vector<std::string> problems(const EvaluateFlags& flags) {
  std::vector<std::string> found;
  if (flags.task.empty()) {
    found.push_back(fmt::format("--task is missing; use {}, {}, MNLI, QQP or RACE", kWikiTextTask,
                                kLambadaTask));
  } else if (flags.task != kWikiTextTask && flags.task != kLambadaTask) {
    found.push_back(fmt::format("--task {} is not available; use {}, {}, MNLI, QQP or RACE",
                                flags.task, kWikiTextTask, kLambadaTask));
  }
  if (flags.valid_data.size() != 1) {
    found.push_back(
        fmt::format("--valid-data must name one file, not {}", flags.valid_data.size()));
  } else if (std::error_code error; !std::filesystem::exists(flags.valid_data[0], error)) {
    found.push_back(fmt::format("--valid-data {}: there is no such file", flags.valid_data[0]));
  }
  const auto at_least_one = [&](const char* flag, int64_t value) {
    if (value < 1) found.push_back(fmt::format("{} {} must be at least 1", flag, value));
  };
  at_least_one("--overlapping-eval", flags.overlapping_eval);
  at_least_one("--micro-batch-size", flags.micro_batch_size);
  at_least_one("--log-interval", flags.log_interval);
  if (flags.seq_length < 0) at_least_one("--seq-length", flags.seq_length);
  return found;
}

std::optional<Detokenizer> rules_of(Rules rules, const std::string& path) {
  switch (rules) {
    case Rules::kNone:
      return Detokenizer::kNone;
    case Rules::kPennTreebank:
      return Detokenizer::kPennTreebank;
    case Rules::kWikiText:
      return Detokenizer::kWikiText;
    case Rules::kByPath:
      break;
  }
  return detokenizer_of(path);
}

struct Question {
  std::vector<TextRow> rows;
  int64_t num_words = 0;  // WIKITEXT103: of the file, before its blanks are undone
  int64_t num_tokens = 0;
};

Question perplexity_question(const EvaluateFlags& flags, const Tokenizer& tokenizer,
                             int64_t seq_length) {
  const std::string& path = flags.valid_data[0];
  const std::string text = read_text(path);
  if (!is_valid_utf8(text)) throw ConfigError(path + ": is not valid UTF-8");
  const std::optional<Detokenizer> rules = rules_of(flags.detokenizer, path);
  if (!rules) {
    throw ConfigError(fmt::format(
        "{}: neither ptb, wiki nor lambada is in the path, which would tell how to undo the blanks "
        "between words; give --detokenizer none, ptb or wiki",
        path));
  }
  const std::vector<int32_t> tokens = tokenizer.encode(detokenized(text, *rules));
  const std::string_view words = stripped(text);
  Question question = {sliding_windows(tokens, seq_length, flags.overlapping_eval),
                       std::count(words.begin(), words.end(), ' ') + 1, std::ssize(tokens)};
  if (question.rows.empty() || question.num_words < 2) {
    throw ConfigError(path + ": has fewer than two words; give a longer text");
  }
  return question;
}

Question cloze_question(const EvaluateFlags& flags, const Tokenizer& tokenizer,
                        int64_t seq_length) {
  const std::string& path = flags.valid_data[0];
  Question question;
  each_line(path, [&](const std::string& line, int64_t number) {
    about_line(path, number, [&] {
      const json object = object_of(line);
      if (!object.contains("text") || !object["text"].is_string()) {
        throw ConfigError("\"text\" is missing; each line must be {\"text\": \"...\"}");
      }
      question.rows.push_back(cloze_row(object["text"].get_ref<const std::string&>(), tokenizer,
                                        seq_length, flags.strict_lambada));
    });
  });
  if (question.rows.empty()) throw ConfigError(path + ": has no lines");
  return question;
}

json to_json(const Question& question) {
  json rows = json::array();
  for (const TextRow& row : question.rows) rows.push_back({row.first_label, row.ids});
  return {{"rows", rows}, {"num_words", question.num_words}, {"num_tokens", question.num_tokens}};
}

Question question_of(const json& object) {
  Question question = {{}, object.at("num_words"), object.at("num_tokens")};
  for (const json& row : object.at("rows")) {
    question.rows.push_back({row.at(1).get<std::vector<int32_t>>(), row.at(0)});
  }
  return question;
}

std::string perplexity_result(double sum, const Question& question) {
  const auto tokens = static_cast<double>(question.num_tokens - 1);
  const double loss = sum / tokens;
  const double ratio = tokens / static_cast<double>(question.num_words - 1);
  return fmt::format("avg loss: {:.4E} | ppl: {:.4E} | adjusted ppl: {:.4E} | token ratio: {} |",
                     loss, std::exp(std::min(20.0, loss)), std::exp(std::min(20.0, loss * ratio)),
                     ratio);
}

std::string accuracy_result(int64_t correct, int64_t total) {
  const auto right = static_cast<double>(correct);
  const auto all = static_cast<double>(total);
  return fmt::format("number correct: {:.4E} | total examples: {:.4E} | avg accuracy: {:.4E}",
                     right, all, right / all);
}

// The value of the rows that are done, for progress.
std::string running_result(bool is_perplexity, std::span<const TextRow> done, double result) {
  int64_t count = 0;
  for (const TextRow& row : done) count += is_perplexity ? row.num_labels() : 1;
  if (count == 0) return {};
  const double mean = result / static_cast<double>(count);
  return is_perplexity ? fmt::format("ppl {:.4g}", std::exp(std::min(20.0, mean)))
                       : fmt::format("accuracy {:.4f}", mean);
}

}  // namespace

int evaluate(std::span<const std::string> words, const comm::Group& world) {
  if (names_classification_task(words)) return train_classifier(words, world);
  const LogScope on_first(world.rank() == 0);
  EvaluateFlags flags;
  FlagTable table = flags_of(flags);
  const CommonCommand command = {
      .usage = "megatron evaluate --task TASK --valid-data FILE --load DIR [flags]",
      .takes_training_words = true,
      .problems = [&] { return problems(flags); }};
  if (!parse_common_flags(table, command, words, world)) return 0;

  const LoadedModel gpt = load_model(flags.model, world);
  const bool is_perplexity = flags.task == kWikiTextTask;
  json request;
  if (world.rank() == 0) {
    const int64_t positions = max_positions(gpt.model->config());
    const int64_t seq_length =
        flags.seq_length > 0 ? flags.seq_length
                             : std::min(positions, gpt.model->config().max_position_embeddings);
    const Tokenizer& tokenizer = gpt.required_tokenizer();
    request = to_json(is_perplexity ? perplexity_question(flags, tokenizer, seq_length)
                                    : cloze_question(flags, tokenizer, seq_length));
  }
  const Question question = question_of(shared(request, world));
  const InferenceModel model = gpt.inference();
  TerminalLine line;
  const int64_t num_batches =
      (std::ssize(question.rows) + flags.micro_batch_size - 1) / flags.micro_batch_size;
  EvaluationProgress progress(world.rank() == 0 ? &line : nullptr, num_batches);
  const auto show = [&](int64_t batch, std::span<const TextRow> done, double result) {
    if (world.rank() == 0 && batch % flags.log_interval == 0) {
      progress.clear();
      print_line(fmt::format("> working on iteration: {}", batch));
    }
    progress.update(batch, model.parallel.is_last_stage()
                               ? running_result(is_perplexity, done, result)
                               : std::string());
  };
  const RowBatches batches = {flags.micro_batch_size, show};
  const std::string result =
      is_perplexity ? perplexity_result(sum_of_losses(model, question.rows, batches), question)
                    : accuracy_result(num_rows_predicted(model, question.rows, batches),
                                      std::ssize(question.rows));
  if (world.rank() != 0) return 0;
  progress.clear();
  const std::string results = fmt::format(" validation results on {} | {}", flags.task, result);
  const std::string dashes(results.size() + 1, '-');
  for (const std::string& text : {dashes, results, dashes}) print_line(text);
  return 0;
}

}  // namespace megatron::cli
