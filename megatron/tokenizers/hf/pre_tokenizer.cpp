#include "megatron/tokenizers/hf/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/tokenizers/byte_map.h"
#include "megatron/tokenizers/hf/pattern.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::hf {
namespace {

using Json = nlohmann::json;

// Treatment of a pattern's matches.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior behavior_of(const std::string& name) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw FormatError(fmt::format("the behavior {} of a split is not known", name));
}

struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;
};

// The matches and the gaps between them; together they cover the text.
std::vector<Span> spans_of(const std::vector<Regex::Match>& matches, size_t size, bool invert) {
  std::vector<Span> spans;
  size_t end = 0;
  for (const Regex::Match& match : matches) {
    if (match.begin > end) spans.push_back({end, match.begin, invert});
    spans.push_back({match.begin, match.end, !invert});
    end = match.end;
  }
  if (end < size) spans.push_back({end, size, invert});
  return spans;
}

// Joins spans according to the behavior; removed matches stay marked.
std::vector<Span> joined(std::vector<Span> spans, Behavior behavior) {
  if (behavior == Behavior::kRemoved || behavior == Behavior::kIsolated) return spans;
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(spans.begin(), spans.end());
  std::vector<Span> result;
  bool follows_match = false;
  for (const Span& span : spans) {
    const bool joins = behavior == Behavior::kContiguous ? span.is_match == follows_match
                                                         : span.is_match && !follows_match;
    follows_match = span.is_match;
    if (!joins || result.empty()) {
      result.push_back(span);
    } else if (backwards) {
      result.back().begin = span.begin;
    } else {
      result.back().end = span.end;
    }
  }
  if (backwards) std::reverse(result.begin(), result.end());
  return result;
}

PreTokenizerStep split(Finder find, Behavior behavior, bool invert = false) {
  return [find = std::move(find), behavior, invert](Pieces& pieces) {
    std::vector<Regex::Match> matches;
    pieces.split_each([&](const Piece& piece, const auto& add) {
      find(piece.text, matches);
      for (const Span& span : joined(spans_of(matches, piece.text.size(), invert), behavior)) {
        if (behavior == Behavior::kRemoved && span.is_match) continue;
        add({piece.text.substr(span.begin, span.end - span.begin),
             piece.is_first && span.begin == 0});
      }
    });
  };
}

// Patterns of well-known models have hand-written scanners.
PreTokenizerStep make_split(const Json& json) {
  const Behavior behavior = behavior_of(json.at("behavior").get<std::string>());
  const bool invert = json.value("invert", false);
  const Json& pattern = json.at("pattern");
  const std::string regex = pattern.value("Regex", std::string());
  if (behavior == Behavior::kIsolated && !invert) {
    if (const std::optional<WordSplit> words = WordSplit::of(regex)) return *words;
  }
  return split(make_finder(pattern), behavior, invert);
}

PreTokenizerStep prefix_blank() {
  return [](Pieces& pieces) {
    pieces.split_each([&](const Piece& piece, const auto& add) {
      const bool has_blank = piece.text.starts_with(' ');
      add({has_blank ? piece.text : pieces.keep(" " + std::string(piece.text)), piece.is_first});
    });
  };
}

PreTokenizerStep map_bytes() {
  return [](Pieces& pieces) {
    pieces.split_each([&](const Piece& piece, const auto& add) {
      add({pieces.keep(printable_from_bytes(piece.text)), piece.is_first});
    });
  };
}

// Which first pieces get the replacement as a prefix.
enum class PrependScheme { kAlways, kFirst, kNever };

PrependScheme prepend_scheme_of(const Json& json) {
  const Json scheme = json.value("prepend_scheme", Json());
  if (scheme.is_null()) {
    return json.value("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
  }
  if (scheme == "always") return PrependScheme::kAlways;
  if (scheme == "first") return PrependScheme::kFirst;
  if (scheme == "never") return PrependScheme::kNever;
  throw FormatError(
      fmt::format("prepend_scheme {} is not known; there are \"always\", \"first\" "
                  "and \"never\"",
                  shortened_json(scheme)));
}

std::vector<PreTokenizerStep> make_metaspace(const Json& json) {
  const auto mark = json.at("replacement").get<std::string>();
  const PrependScheme scheme = prepend_scheme_of(json);
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back([mark, scheme](Pieces& pieces) {
    pieces.split_each([&](const Piece& piece, const auto& add) {
      std::string text;
      text.reserve(piece.text.size() * 2);
      for (const char c : piece.text) {
        if (c == ' ') {
          text += mark;
        } else {
          text += c;
        }
      }
      const bool prepends =
          scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && piece.is_first);
      if (prepends && !text.starts_with(mark)) text.insert(0, mark);
      add({pieces.keep(std::move(text)), piece.is_first});
    });
  });
  if (json.value("split", true)) {
    steps.push_back(split(find_text(mark), Behavior::kMergedWithNext));
  }
  return steps;
}

// Runs of word characters, and runs of characters that are neither word nor white space.
void find_words(std::string_view text, std::vector<Regex::Match>& matches) {
  enum class Kind { kSpace, kWord, kOther };
  const auto kind_of = [](char32_t c) {
    if (is_word_character(c)) return Kind::kWord;
    return is_white_space(c) ? Kind::kSpace : Kind::kOther;
  };
  matches.clear();
  const char* const end = text.data() + text.size();
  Kind run = Kind::kSpace;
  for (const char* p = text.data(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    const auto begin = static_cast<size_t>(p - text.data());
    p += c.length;
    const Kind kind = kind_of(c.value);
    if (kind != Kind::kSpace && kind != run) matches.push_back({begin, begin});
    if (kind != Kind::kSpace) matches.back().end = static_cast<size_t>(p - text.data());
    run = kind;
  }
}

void append_steps(const Json& json, std::vector<PreTokenizerStep>& steps);

void append_byte_level(const Json& json, std::vector<PreTokenizerStep>& steps) {
  if (json.value("add_prefix_space", true)) steps.push_back(prefix_blank());
  if (json.value("use_regex", true)) steps.emplace_back(WordSplit::gpt2());
}

void append_type(const std::string& type, const Json& json, std::vector<PreTokenizerStep>& steps) {
  if (type == "Split") {
    steps.push_back(make_split(json));
  } else if (type == "Metaspace") {
    for (PreTokenizerStep& step : make_metaspace(json)) steps.push_back(std::move(step));
  } else if (type == "WhitespaceSplit") {
    steps.push_back(split(find_characters(is_white_space), Behavior::kRemoved));
  } else if (type == "Whitespace") {
    steps.push_back(split(find_words, Behavior::kRemoved, true));
  } else if (type == "BertPreTokenizer") {
    steps.push_back(split(find_characters(is_white_space), Behavior::kRemoved));
    steps.push_back(split(find_characters(is_punctuation), Behavior::kIsolated));
  } else if (type == "Digits") {
    const bool single = json.value("individual_digits", false);
    steps.push_back(
        split(find_characters(is_number), single ? Behavior::kIsolated : Behavior::kContiguous));
  } else if (type == "Punctuation") {
    steps.push_back(split(find_characters(is_punctuation),
                          behavior_of(json.value("behavior", std::string("Isolated")))));
  } else if (type == "CharDelimiterSplit") {
    steps.push_back(split(find_text(json.at("delimiter").get<std::string>()), Behavior::kRemoved));
  } else {
    throw FormatError(fmt::format("the pre_tokenizer {} is not available", type));
  }
}

void append_steps(const Json& json, std::vector<PreTokenizerStep>& steps) {
  const std::string type = json.at("type");
  if (type == "Sequence") {
    for (const Json& part : json.at("pretokenizers")) append_steps(part, steps);
  } else if (type == "ByteLevel") {
    append_byte_level(json, steps);
    steps.push_back(map_bytes());
  } else {
    append_type(type, json, steps);
  }
}

// The last part, recursing into sequences.
const Json* last_part(const Json& json) {
  const Json* part = &json;
  while (part->is_object() && part->at("type") == "Sequence") {
    const Json& parts = part->at("pretokenizers");
    if (parts.empty()) return nullptr;
    part = &parts.back();
  }
  return part;
}

}  // namespace

void Pieces::reset(Piece piece) {
  texts_.clear();
  list_.clear();
  if (!piece.text.empty()) list_.push_back(piece);
}

std::string_view Pieces::keep(std::string text) { return texts_.emplace_back(std::move(text)); }

PreTokenizer make_pre_tokenizer(const Json& json) {
  PreTokenizer result;
  if (json.is_null()) return result;
  append_steps(json, result.steps);
  const Json* const last = last_part(json);
  if (last != nullptr && last->at("type") == "ByteLevel") {
    result.steps.pop_back();  // bytes are mapped when a word is new
    result.maps_bytes = true;
  }
  if (result.steps.empty()) return result;
  if (const WordSplit* const words = result.steps.back().target<WordSplit>()) {
    result.words = *words;
    result.steps.pop_back();
  }
  return result;
}

}  // namespace megatron::hf
