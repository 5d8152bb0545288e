#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/blank_words.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace megatron {

// A SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226), run by its library.
// Immutable, so thread safe.
class SentencePieceModel {
 public:
  // Throws IoError, or FormatError if the file is no such model.
  explicit SentencePieceModel(const std::string& file);
  ~SentencePieceModel();
  SentencePieceModel(SentencePieceModel&& other) noexcept;

  const std::string& file() const { return file_; }
  int32_t num_pieces() const;
  // Appends the ids of a text, without bos and eos.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // Whether the ids of a text are those of its words, each encoded alone: pieces of a BPE model
  // that keep to words, and no changes of characters. Then cut_words() gives the words.
  bool has_words(std::string_view text) const;
  // Calls emit(word) for texts whose ids, one after the other, are those of the text.
  // REQUIRES: has_words(text).
  template <class Emit>
  void cut_words(std::string_view text, const Emit& emit) const;
  // REQUIRES: ids are in [0, num_pieces()).
  std::string decode(const std::vector<int32_t>& ids) const;
  const std::string& piece(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view piece) const;

  // Nothing if the model was made without the token.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;

 private:
  bool pieces_keep_to_words() const;

  std::string file_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  bool has_words_ = false;
  bool removes_extra_blanks_ = false;
};

template <class Emit>
void SentencePieceModel::cut_words(std::string_view text, const Emit& emit) const {
  cut_blank_words(text, removes_extra_blanks_, emit);
}

}  // namespace megatron
