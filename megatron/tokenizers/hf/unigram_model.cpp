#include "megatron/tokenizers/hf/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/tokenizers/hf/bpe_model.h"
#include "megatron/tokenizers/hf/model_file.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::hf {
namespace {

constexpr double kUnknownPenalty = 10;

// Compat: Hugging Face reads a number as its digits times a power of ten, which rounds twice. The
// last bit decides between segmentations of equal probability.
double read_as_there(double value) {
  const std::string text = fmt::format("{}", std::abs(value));
  uint64_t digits = 0;
  int exponent = 0;
  bool is_behind_point = false;
  for (const char c : text) {
    if (c == '.') {
      is_behind_point = true;
    } else if (c >= '0' && c <= '9') {
      digits = digits * 10 + static_cast<uint64_t>(c - '0');
      exponent -= is_behind_point ? 1 : 0;
    } else {
      return value;  // with an exponent of its own, or no finite number
    }
  }
  const double read = static_cast<double>(digits) / std::pow(10.0, -exponent);
  return value < 0 ? -read : read;
}

}  // namespace

// The best way to reach a place of the word.
struct UnigramModel::Step {
  double score = 0;
  int64_t begin = -1;  // of its last piece; -1: not reached yet
  int32_t id = 0;
};

struct UnigramModel::Part {
  std::string_view text;
  int32_t id = 0;
};

UnigramModel::UnigramModel(const ModelFile& file) {
  int32_t id = 0;
  for (const auto& [piece, score] : file.scores()) {
    vocabulary_.add(piece, id);
    scores_.push_back(read_as_there(score));
    trie_.insert(piece, id++);
  }
  if (scores_.empty()) throw FormatError("the vocab of the model is empty");
  const nlohmann::json unknown = file.settings.value("unk_id", nlohmann::json());
  if (!unknown.is_null()) {
    unknown_id_ = unknown.get<int32_t>();
    if (*unknown_id_ < 0 || static_cast<size_t>(*unknown_id_) >= scores_.size()) {
      throw FormatError(fmt::format("unk_id {} must be in [0, {})", *unknown_id_, scores_.size()));
    }
  }
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  falls_back_to_bytes_ = file.settings.value("byte_fallback", false);
  byte_ids_ = byte_pieces(vocabulary_);
}

std::vector<UnigramModel::Step> UnigramModel::best_steps(std::string_view word) const {
  std::vector<Step> steps(word.size() + 1);
  const char* const end = word.data() + word.size();
  for (size_t begin = 0; begin < word.size();) {
    const double score = steps[begin].score;
    const auto character = static_cast<size_t>(decode_utf8(word.data() + begin, end).length);
    const auto consider = [&](size_t length, int32_t id, double own_score) {
      Step& step = steps[begin + length];
      // Ties go to the earlier one.
      if (step.begin >= 0 && own_score + score <= step.score) return;
      step = {own_score + score, static_cast<int64_t>(begin), id};
    };
    bool has_character = false;
    trie_.for_each_prefix(word.substr(begin), [&](ByteTrie::Match match) {
      consider(match.length, match.number, scores_[static_cast<size_t>(match.number)]);
      has_character |= match.length == character;
    });
    if (!has_character) {
      if (!unknown_id_) {
        throw FormatError(fmt::format("the model has no unk_id, and no piece for \"{}\"",
                                      word.substr(begin, character)));
      }
      consider(character, *unknown_id_, unknown_score_);
    }
    begin += character;
  }
  return steps;
}

std::vector<UnigramModel::Part> UnigramModel::best_parts(std::string_view word) const {
  const std::vector<Step> steps = best_steps(word);
  std::vector<Part> parts;  // from the end of the word
  for (size_t end = word.size(); end > 0;) {
    const Step& step = steps[end];
    const auto begin = static_cast<size_t>(step.begin);
    const bool is_unknown = unknown_id_ && step.id == *unknown_id_;
    if (is_unknown && !parts.empty() && parts.back().id == *unknown_id_) {
      Part& next = parts.back();
      next.text = word.substr(begin, end - begin + next.text.size());
    } else {
      parts.push_back({word.substr(begin, end - begin), step.id});
    }
    end = begin;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

void UnigramModel::append_part(const Part& part, std::vector<int32_t>& ids) const {
  if (!unknown_id_ || part.id != *unknown_id_) {
    ids.push_back(part.id);
    return;
  }
  if (const std::optional<int32_t> id = vocabulary_.id_of(part.text)) {
    ids.push_back(*id);
    return;
  }
  const auto id_of_byte = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (falls_back_to_bytes_ && std::all_of(part.text.begin(), part.text.end(), id_of_byte)) {
    for (const char byte : part.text) ids.push_back(*id_of_byte(byte));
    return;
  }
  ids.push_back(*unknown_id_);
}

void UnigramModel::append(std::string_view word, std::vector<int32_t>& ids) const {
  for (const Part& part : best_parts(word)) append_part(part, ids);
}

}  // namespace megatron::hf
