#include "megatron/tokenizers/hf/text_cuts.h"

#include <utf8proc.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/tokenizers/hf/normalizer.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::hf {
namespace {

using Json = nlohmann::json;

std::string type_of(const Json& json) {
  return json.is_object() ? json.value("type", std::string()) : std::string();
}

// As Llama-2: U+2581 before the text, and in place of each blank.
bool marks_blanks(const Json& normalizer) {
  if (type_of(normalizer) != "Sequence" || normalizer.at("normalizers").size() != 2) return false;
  const Json& prepend = normalizer.at("normalizers").at(0);
  const Json& replace = normalizer.at("normalizers").at(1);
  return type_of(prepend) == "Prepend" && prepend.value("prepend", Json()) == kBlankMark &&
         type_of(replace) == "Replace" &&
         replace.value("pattern", Json()) == Json{{"String", " "}} &&
         replace.value("content", Json()) == kBlankMark;
}

// True if each of them always lies within one word.
bool keep_to_words(const std::vector<AddedToken>& added) {
  return std::all_of(added.begin(), added.end(), [](const AddedToken& token) {
    return !token.single_word && !token.lstrip && !token.rstrip &&
           token.content.find(' ') == std::string::npos && keeps_to_words(token.content);
  });
}

// True if blanks are preserved, and a grapheme cluster is changed independently of its neighbours.
bool changes_clusters_alone(const Json& json) {
  if (json.is_null()) return true;
  if (type_of(json) != "Precompiled") return false;
  const Normalizer normalizer = make_normalizer(json);
  const auto stays_blank = [&](std::string blank) {
    normalizer(blank);
    return blank == " " || blank == "\n";
  };
  return stays_blank(" ") && stays_blank("\n");
}

// True if a pre-tokenizer first splits as `first` does, and never depends on whether a piece is the
// first of the text.
bool begins_with(const Json& json, const std::string& first) {
  if (type_of(json) == first) return true;
  if (type_of(json) != "Sequence" || json.at("pretokenizers").empty()) return false;
  const Json& parts = json.at("pretokenizers");
  const bool asks_for_first = std::any_of(parts.begin(), parts.end(), [](const Json& part) {
    return type_of(part) == "Sequence" || part.value("prepend_scheme", Json()) == "first";
  });
  return type_of(parts.at(0)) == first && !asks_for_first;
}

}  // namespace

TextCuts::TextCuts(const Json& normalizer, const Json& pre_tokenizer, const Model& model,
                   const std::vector<AddedToken>& added) {
  if (marks_blanks(normalizer) && pre_tokenizer.is_null() && model.keeps_to_words() &&
      keep_to_words(added)) {
    places_ = Places::kBlankMarks;
  } else if (!added.empty()) {
    return;
  } else if (type_of(normalizer) == "BertNormalizer" &&
             begins_with(pre_tokenizer, "BertPreTokenizer")) {
    places_ = Places::kBertWords;
  } else if (changes_clusters_alone(normalizer) && begins_with(pre_tokenizer, "WhitespaceSplit")) {
    places_ = Places::kBlanks;
  }
}

bool TextCuts::may_cut(std::string_view text) const {
  if (places_ == Places::kBlankMarks) return text.find(kBlankMark) == std::string_view::npos;
  return places_ != Places::kNowhere;
}

bool TextCuts::is_cluster(std::string_view text, const char* p) {
  const char* const end = text.data() + text.size();
  const auto breaks = [](char32_t left, char32_t right) {
    return utf8proc_grapheme_break(static_cast<utf8proc_int32_t>(left),
                                   static_cast<utf8proc_int32_t>(right));
  };
  const auto own = static_cast<char32_t>(*p);
  if (p > text.data() && !breaks(last_code_point(text.data(), p).value, own)) return false;
  return p + 1 == end || breaks(own, decode_utf8(p + 1, end).value);
}

}  // namespace megatron::hf
