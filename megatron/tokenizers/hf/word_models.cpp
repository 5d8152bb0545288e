#include "megatron/tokenizers/hf/word_models.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/tokenizers/hf/bpe_model.h"
#include "megatron/tokenizers/hf/unigram_model.h"

namespace megatron::hf {
namespace {

int32_t unknown_id_of(const nlohmann::json& json, const Vocabulary& vocabulary) {
  return vocabulary.required_id(json.value("unk_token", std::string("[UNK]")), "unk_token");
}

// Old files do not say which model they have.
std::string type_of(const nlohmann::json& json) {
  if (json.contains("type")) return json.at("type");
  if (json.contains("merges")) return "BPE";
  if (json.at("vocab").is_array()) return "Unigram";
  return json.contains("continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

}  // namespace

WordPieceModel::WordPieceModel(const nlohmann::json& json)
    : vocabulary_(json.at("vocab")),
      pieces_({.continuing_prefix = json.value("continuing_subword_prefix", std::string("##")),
               .unknown_id = unknown_id_of(json, vocabulary_),
               .max_characters = json.value("max_input_chars_per_word", int64_t{100})}) {
  vocabulary_.for_each([&](std::string_view piece, int32_t id) { pieces_.add_piece(piece, id); });
}

WordLevelModel::WordLevelModel(const nlohmann::json& json)
    : vocabulary_(json.at("vocab")), unknown_id_(unknown_id_of(json, vocabulary_)) {}

std::unique_ptr<Model> make_model(const nlohmann::json& json) {
  const std::string type = type_of(json);
  if (type == "BPE") return std::make_unique<BpeModel>(json);
  if (type == "Unigram") return std::make_unique<UnigramModel>(json);
  if (type == "WordPiece") return std::make_unique<WordPieceModel>(json);
  if (type == "WordLevel") return std::make_unique<WordLevelModel>(json);
  throw FormatError(fmt::format(
      "the model {} is not available; there are BPE, Unigram, WordPiece and WordLevel", type));
}

}  // namespace megatron::hf
