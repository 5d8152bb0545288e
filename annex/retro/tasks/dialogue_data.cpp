#include "annex/retro/tasks/dialogue_data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/tasks/detokenize.h"
#include "megatron/tasks/json_items.h"

namespace megatron {
namespace {

using Json = nlohmann::json;

std::string titled(const std::string& title, const std::string& text) {
  return "title: " + title + ", source: " + text;
}

// "question" and, on a line of its own, the options "(A) ... (B) ...".
std::string question_of(const Json& item) {
  std::string question = item.at("question").get<std::string>();
  if (item.value("qa_type", "") != "multi_choice_qa") return question;
  question += "\nChoose one based on the following options:";
  char letter = 'A';
  for (const Json& option : item.at("multichoice_options")) {
    question += fmt::format(" ({}) {}", letter++,
                            option.is_string() ? option.get<std::string>() : option.dump());
  }
  return question;
}

std::vector<std::string> contexts_of(const Json& item, ContextField field) {
  std::vector<std::string> contexts;
  if (field == ContextField::kCorpus) {
    for (const Json& text : item.at("bert_pretrain_corpus_neighbours")) {
      contexts.push_back("source: " + text.get<std::string>());
    }
    return contexts;
  }
  if (field == ContextField::kRetrieved) {
    for (const Json& found : item.at("ctxs")) {
      contexts.push_back(
          titled(found.at("title").get<std::string>(), found.at("text").get<std::string>()));
    }
    return contexts;
  }
  if (const auto own = item.find("sub-paragraphs"); own != item.end()) {
    if (!own->is_array()) return {titled("", own->get<std::string>())};
    return {titled(own->at(0).get<std::string>(), own->at(1).get<std::string>())};
  }
  return {titled("", item.value("sub_paragraph", ""))};
}

// Compat: Megatron-LM formats values that are not strings as Python does.
std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.dump();
}

// The first answer; none if there is no answer.
std::optional<std::string> answer_of(const Json& item, const DialogueFields& fields) {
  if (fields.has_longform_answer) {
    if (!item.contains("longform_answer")) return std::nullopt;
    return item.at("longform_answer").get<std::string>();
  }
  const Json& answers = item.contains("answers") ? item.at("answers") : item.at("answer");
  if (!answers.is_array()) return text_of(answers);
  if (answers.empty()) return std::nullopt;
  const Json& first = answers.front();
  if (first.is_object()) return std::string(stripped(first.at("text").get<std::string>()));
  return first.get<std::string>();
}

}  // namespace

std::vector<Dialogue> read_dialogues(const std::filesystem::path& file,
                                     const DialogueFields& fields) {
  const JsonItems written =
      fields.has_longform_answer && fields.reads_answers ? JsonItems::kLines : json_items_of(file);
  std::vector<Dialogue> dialogues;
  int64_t number = 0;
  for (const Json& item : read_json_items(file, written)) {
    try {
      const std::optional<std::string> answer =
          fields.reads_answers ? answer_of(item, fields) : std::string();
      if (answer) {
        dialogues.push_back({.question = question_of(item),
                             .answer = fields.reads_answers ? " " + *answer : "",
                             .contexts = contexts_of(item, fields.contexts)});
      }
    } catch (const Json::exception& error) {
      throw FormatError(fmt::format(
          "{}: item {} lacks a field, or has one of another kind: {}; it needs \"question\", the "
          "answers and the contexts that the flags name (docs/retro.md)",
          file.string(), number, json_problem(error)));
    }
    number += 1;
  }
  return dialogues;
}

std::filesystem::path dialogue_file(const std::filesystem::path& folder, std::string_view name,
                                    std::string_view part) {
  return folder / name / fmt::format("{}_QA_{}.json", name, part);
}

}  // namespace megatron
