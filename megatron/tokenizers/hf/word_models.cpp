#include <fmt/format.h>

#include <variant>

#include "megatron/core/error.h"
#include "megatron/tokenizers/hf/bpe_model.h"
#include "megatron/tokenizers/hf/model.h"
#include "megatron/tokenizers/hf/model_file.h"
#include "megatron/tokenizers/hf/unigram_model.h"
#include "megatron/tokenizers/hf/vocabulary.h"
#include "megatron/tokenizers/word_piece.h"

namespace megatron::hf {
namespace {

int32_t unknown_id_of(const ModelFile& file, const Vocabulary& vocabulary) {
  return vocabulary.required_id(file.settings.value("unk_token", std::string("[UNK]")),
                                "unk_token");
}

// BERT's pieces (word_piece.h), here of words of up to 100 characters unless the file says more.
class WordPieceModel final : public Model {
 public:
  explicit WordPieceModel(const ModelFile& file)
      : vocabulary_(file.ids()),
        pieces_({.continuing_prefix =
                     file.settings.value("continuing_subword_prefix", std::string("##")),
                 .unknown_id = unknown_id_of(file, vocabulary_),
                 .max_characters = file.settings.value("max_input_chars_per_word", int64_t{100})}) {
    vocabulary_.for_each([&](std::string_view piece, int32_t id) { pieces_.add_piece(piece, id); });
  }

  void append(std::string_view word, std::vector<int32_t>& ids) const override {
    pieces_.append(word, ids);
  }
  std::optional<int32_t> id_of(std::string_view piece) const override {
    return vocabulary_.id_of(piece);
  }
  const std::string* piece(int32_t id) const override { return vocabulary_.piece(id); }
  int64_t size() const override { return vocabulary_.size(); }

 private:
  Vocabulary vocabulary_;
  WordPiece pieces_;
};

// Whole words; a word that is not in the vocabulary is unknown.
class WordLevelModel final : public Model {
 public:
  explicit WordLevelModel(const ModelFile& file)
      : vocabulary_(file.ids()), unknown_id_(unknown_id_of(file, vocabulary_)) {}

  void append(std::string_view word, std::vector<int32_t>& ids) const override {
    ids.push_back(vocabulary_.id_of(word).value_or(unknown_id_));
  }
  std::optional<int32_t> id_of(std::string_view piece) const override {
    return vocabulary_.id_of(piece);
  }
  const std::string* piece(int32_t id) const override { return vocabulary_.piece(id); }
  int64_t size() const override { return vocabulary_.size(); }

 private:
  Vocabulary vocabulary_;
  int32_t unknown_id_;
};

// Old files do not name the type of their model.
std::string type_of(const ModelFile& file) {
  if (file.settings.contains("type")) return file.settings.at("type");
  if (file.has_merges) return "BPE";
  if (std::holds_alternative<ModelFile::Scores>(file.vocab)) return "Unigram";
  return file.settings.contains("continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

}  // namespace

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
