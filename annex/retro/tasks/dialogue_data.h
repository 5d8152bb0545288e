#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

// Questions with answers and context passages: the data of InstructRetro (Wang et al. 2023,
// arXiv:2310.07713).
namespace megatron {

struct Dialogue {
  std::string question;               // the user's question, or all turns so far
  std::string answer;                 // begins with a blank; empty if it was not read
  std::vector<std::string> contexts;  // "title: T, source: X", at least one
};

// The field of an item with its contexts.
enum class ContextField {
  kParagraph,  // "sub-paragraphs" ([title, text] or a text) or "sub_paragraph"; else an empty text
  kRetrieved,  // "ctxs": [{"title", "text"}, ...]
  kCorpus,     // "bert_pretrain_corpus_neighbours": [text, ...]
};

struct DialogueFields {
  ContextField contexts = ContextField::kParagraph;
  bool has_longform_answer = false;  // "longform_answer" in place of "answers" or "answer"
  bool reads_answers = true;
};

// Reads a JSON array of items, or an item a line in a file .txt or .jsonl or with longform answers.
// Skips items without an answer, and uses the first of several answers, as Megatron-LM does. Throws
// IoError; FormatError, which names the item and the missing field.
std::vector<Dialogue> read_dialogues(const std::filesystem::path& file,
                                     const DialogueFields& fields);

// The files of a data set in --data-folder: FOLDER/NAME/NAME_QA_train.json, NAME_QA_dev.json.
std::filesystem::path dialogue_file(const std::filesystem::path& folder, std::string_view name,
                                    std::string_view part);

}  // namespace megatron
