#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  // REQUIRES: ids are in [0, num_pieces()).
  std::string decode(const std::vector<int32_t>& ids) const;
  const std::string& piece(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view piece) const;

  // Nothing if the model was made without the token.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;

 private:
  std::string file_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace megatron
