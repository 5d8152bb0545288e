#include "megatron/tokenizers/hf/word_models.h"

#include <fmt/format.h>

#include <variant>

#include "megatron/core/error.h"
#include "megatron/tokenizers/hf/bpe_model.h"
#include "megatron/tokenizers/hf/model_file.h"
#include "megatron/tokenizers/hf/unigram_model.h"

namespace megatron::hf {
namespace {

int32_t unknown_id_of(const ModelFile& file, const Vocabulary& vocabulary) {
  return vocabulary.required_id(file.settings.value("unk_token", std::string("[UNK]")),
                                "unk_token");
}

// Old files do not say which model they have.
std::string type_of(const ModelFile& file) {
  if (file.settings.contains("type")) return file.settings.at("type");
  if (file.has_merges) return "BPE";
  if (std::holds_alternative<ModelFile::Scores>(file.vocab)) return "Unigram";
  return file.settings.contains("continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

}  // namespace

WordPieceModel::WordPieceModel(const ModelFile& file)
    : vocabulary_(file.ids()),
      pieces_(
          {.continuing_prefix = file.settings.value("continuing_subword_prefix", std::string("##")),
           .unknown_id = unknown_id_of(file, vocabulary_),
           .max_characters = file.settings.value("max_input_chars_per_word", int64_t{100})}) {
  vocabulary_.for_each([&](std::string_view piece, int32_t id) { pieces_.add_piece(piece, id); });
}

WordLevelModel::WordLevelModel(const ModelFile& file)
    : vocabulary_(file.ids()), unknown_id_(unknown_id_of(file, vocabulary_)) {}

std::unique_ptr<Model> make_model(const ModelFile& file) {
  const std::string type = type_of(file);
  if (type == "BPE") return std::make_unique<BpeModel>(file);
  if (type == "Unigram") return std::make_unique<UnigramModel>(file);
  if (type == "WordPiece") return std::make_unique<WordPieceModel>(file);
  if (type == "WordLevel") return std::make_unique<WordLevelModel>(file);
  throw FormatError(fmt::format(
      "the model {} is not available; there are BPE, Unigram, WordPiece and WordLevel", type));
}

}  // namespace megatron::hf
