#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/blank_words.h"
#include "megatron/tokenizers/unigram_words.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace megatron {

// A SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226), run by its library.
// Immutable, so thread safe.
class SentencePieceModel {
 public:
  // Throws IoError, or FormatError if the file is not such a model.
  explicit SentencePieceModel(const std::string& file);
  ~SentencePieceModel();
  SentencePieceModel(SentencePieceModel&& other) noexcept;

  const std::string& file() const { return file_; }
  int32_t num_pieces() const;
  // Appends the ids of a text, without bos and eos.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // True if a text can be encoded word by word (cut_words()): no piece or normalization spans two
  // words. The ids of a BPE model are then those of its words, each encoded alone; for a Unigram
  // model see unigram_words().
  bool has_words(std::string_view text) const;
  // Null for a model that has no words or is not a Unigram model.
  const UnigramWords* unigram_words() const { return unigram_words_ ? &*unigram_words_ : nullptr; }
  // A normalized word with U+2581 before it. REQUIRES: unigram_words().
  std::string normalized(std::string_view word) const;
  // Calls emit(word) for the words of a text, in order.
  // REQUIRES: has_words(text).
  template <class Emit>
  void cut_words(std::string_view text, const Emit& emit) const;
  // REQUIRES: ids are in [0, num_pieces()).
  std::string decode(const std::vector<int32_t>& ids) const;
  const std::string& piece(int32_t id) const;
  // The bytes of a piece inside a text.
  std::string bytes_of(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view piece) const;

  // Nothing if the model has no such token.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;

 private:
  bool load(const std::string& bytes);
  bool pieces_keep_to_words() const;
  UnigramWords make_unigram_words() const;

  std::string file_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  bool has_words_ = false;
  bool removes_extra_blanks_ = false;
  std::optional<UnigramWords> unigram_words_;
};

template <class Emit>
void SentencePieceModel::cut_words(std::string_view text, const Emit& emit) const {
  cut_blank_words(text, removes_extra_blanks_, emit);
}

}  // namespace megatron
