#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/sentence_rules.h"

namespace megatron {

// Cuts text into sentences by Punkt's method (Kiss and Strunk 2006, see SentenceRules). Every full
// stop, question mark and exclamation mark with text after it is a candidate; the words around it
// decide. White space between sentences is dropped, unless keep_newlines is set. Not thread safe.
//
// Compat: with the rules of a folder of NLTK's punkt_tab the sentences are those of NLTK 3.6.6 to
// 3.9.1; like core_r0.5.0's tools/preprocess_data.py this first cuts the text into chunks of
// 1,000,000 code points.
class SentenceSplitter {
 public:
  struct Options {
    bool keep_newlines = false;  // sentences keep the white space that follows their last mark
  };

  SentenceSplitter(SentenceRules rules, Options options)
      : rules_(std::move(rules)), options_(options) {}

  // Appends the sentences of a UTF-8 text, as views of it.
  void split(std::string_view text, std::vector<std::string_view>& sentences);

 private:
  struct Candidate;
  struct Part {
    size_t begin = 0;
    size_t end = 0;
  };
  // A word of the deciding text, with its properties under the rules.
  struct Token {
    std::string_view text;
    std::string type;  // lower case, or "##number##"
    bool is_break = false;
    bool is_abbreviation = false;
    bool is_ellipsis = false;
  };
  enum class Answer;

  void split_chunk(std::string_view text, std::vector<std::string_view>& sentences);
  bool find_candidate(std::string_view text, size_t from, Candidate& found) const;
  bool find_candidate_with_space(std::string_view text, size_t from, Candidate& found) const;
  bool has_break(std::string_view context);
  void classify_alone(Token& token) const;
  void classify_before(Token& token, const Token& next) const;
  Answer begins_sentence(const Token& token) const;
  bool is_abbreviation(std::string_view word) const;
  int seen(std::string_view word) const;

  SentenceRules rules_;
  Options options_;
  std::vector<Part> parts_;  // a member to reuse its memory
  Token tokens_[2];
};

}  // namespace megatron
