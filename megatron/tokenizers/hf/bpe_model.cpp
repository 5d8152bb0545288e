#include "megatron/tokenizers/hf/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/tokenizers/blank_words.h"
#include "megatron/tokenizers/hf/model_file.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::hf {
namespace {

using Json = nlohmann::json;

std::string text_or_empty(const Json& json, const char* name) {
  const Json value = json.value(name, Json());
  return value.is_null() ? std::string() : value.get<std::string>();
}

bool flag(const Json& json, const char* name) {
  const Json value = json.value(name, Json());
  return value.is_boolean() && value.get<bool>();
}

std::vector<BpeMerge> merges_of(const ModelFile& file, const Vocabulary& vocabulary,
                                size_t prefix_size) {
  const auto id_of = [&](std::string_view piece, const char* use, size_t number) {
    const std::optional<int32_t> id = vocabulary.id_of(piece);
    return id ? *id : vocabulary.required_id(piece, fmt::format("{} of merge {}", use, number));
  };
  std::vector<BpeMerge> merges;
  merges.reserve(file.merges.size());
  std::string result;
  for (size_t i = 0; i < file.merges.size(); ++i) {
    const auto& [left, right] = file.merges[i];
    result = left;
    result += right.substr(std::min(prefix_size, right.size()));
    merges.push_back({id_of(left, "part", i), id_of(right, "part", i), id_of(result, "result", i)});
  }
  return merges;
}

}  // namespace

std::array<std::optional<int32_t>, 256> byte_pieces(const Vocabulary& vocabulary) {
  std::array<std::optional<int32_t>, 256> ids;
  for (int byte = 0; byte < 256; ++byte) {
    ids[static_cast<size_t>(byte)] = vocabulary.id_of(fmt::format("<0x{:02X}>", byte));
  }
  return ids;
}

BpeModel::BpeModel(const ModelFile& file)
    : vocabulary_(file.ids()),
      merges_({}),
      continuing_prefix_(text_or_empty(file.settings, "continuing_subword_prefix")),
      end_suffix_(text_or_empty(file.settings, "end_of_word_suffix")),
      fuses_unknown_(flag(file.settings, "fuse_unk")),
      falls_back_to_bytes_(flag(file.settings, "byte_fallback")),
      ignores_merges_(flag(file.settings, "ignore_merges")),
      byte_ids_(byte_pieces(vocabulary_)) {
  const Json dropout = file.settings.value("dropout", Json());
  if (dropout.is_number() && dropout != 0) {
    throw FormatError(
        fmt::format("the model has dropout {}, which would give other ids each time; "
                    "set it to null",
                    shortened_json(dropout)));
  }
  const std::string unknown = text_or_empty(file.settings, "unk_token");
  if (!unknown.empty()) unknown_id_ = vocabulary_.id_of(unknown);
  const std::vector<BpeMerge> merges = merges_of(file, vocabulary_, continuing_prefix_.size());
  merges_ = BpeMerges(merges, MergeOrder::kOneByOne);
  // An unknown character waits for the next known one, which a mark of a blank must be.
  keeps_to_words_ = continuing_prefix_.empty() && end_suffix_.empty() && !ignores_merges_ &&
                    vocabulary_.id_of(kBlankMark) &&
                    std::all_of(merges.begin(), merges.end(), [&](const BpeMerge& merge) {
                      return megatron::keeps_to_words(*vocabulary_.piece(merge.result));
                    });
}

bool BpeModel::append_bytes(std::string_view character, std::vector<int32_t>& ids) const {
  const auto id_of_byte = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (!std::all_of(character.begin(), character.end(), id_of_byte)) return false;
  for (const char byte : character) ids.push_back(*id_of_byte(byte));
  return true;
}

void BpeModel::append_characters(std::string_view word, std::vector<int32_t>& ids) const {
  bool unknown_waits = false;  // the unknown piece goes before the next known character
  const char* const end = word.data() + word.size();
  std::string decorated;
  for (const char* p = word.data(); p < end;) {
    const int64_t length = decode_utf8(p, end).length;
    std::string_view character(p, static_cast<size_t>(length));
    const bool is_first = p == word.data();
    p += length;
    if ((!is_first && !continuing_prefix_.empty()) || (p == end && !end_suffix_.empty())) {
      decorated = is_first ? "" : continuing_prefix_;
      decorated += character;
      if (p == end) decorated += end_suffix_;
      character = decorated;
    }
    if (const std::optional<int32_t> id = vocabulary_.id_of(character)) {
      if (unknown_waits) ids.push_back(*unknown_id_);
      unknown_waits = false;
      ids.push_back(*id);
    } else if (!(falls_back_to_bytes_ && append_bytes(character, ids)) && unknown_id_) {
      if (unknown_waits && !fuses_unknown_) ids.push_back(*unknown_id_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) ids.push_back(*unknown_id_);
}

void BpeModel::append(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignores_merges_) {
    if (const std::optional<int32_t> id = vocabulary_.id_of(word)) {
      ids.push_back(*id);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  append_characters(word, symbols);
  merges_.apply(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

}  // namespace megatron::hf
