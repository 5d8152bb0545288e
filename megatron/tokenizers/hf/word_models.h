#pragma once

#include "megatron/tokenizers/hf/model.h"
#include "megatron/tokenizers/hf/vocabulary.h"
#include "megatron/tokenizers/word_piece.h"

namespace megatron::hf {

// BERT's pieces (word_piece.h), here of words of up to 100 characters unless the file says more.
class WordPieceModel final : public Model {
 public:
  explicit WordPieceModel(const ModelFile& file);

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
  explicit WordLevelModel(const ModelFile& file);

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

}  // namespace megatron::hf
