#pragma once

#include <array>

#include "megatron/tokenizers/bpe_merges.h"
#include "megatron/tokenizers/hf/model.h"
#include "megatron/tokenizers/hf/vocabulary.h"

namespace megatron::hf {

// Byte-pair encoding over characters (Sennrich et al. 2016, arXiv:1508.07909). A character that is
// not in the vocabulary becomes its bytes, <0xNN>, or the unknown piece, or nothing.
class BpeModel final : public Model {
 public:
  explicit BpeModel(const ModelFile& file);

  void append(std::string_view word, std::vector<int32_t>& ids) const override;
  std::optional<int32_t> id_of(std::string_view piece) const override {
    return vocabulary_.id_of(piece);
  }
  const std::string* piece(int32_t id) const override { return vocabulary_.piece(id); }
  int64_t size() const override { return vocabulary_.size(); }
  bool keeps_to_words() const override { return keeps_to_words_; }

 private:
  // The ids of the characters, before any merge.
  void append_characters(std::string_view word, std::vector<int32_t>& ids) const;
  bool append_bytes(std::string_view character, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  BpeMerges merges_;
  std::optional<int32_t> unknown_id_;
  std::string continuing_prefix_;
  std::string end_suffix_;
  bool fuses_unknown_ = false;
  bool falls_back_to_bytes_ = false;
  bool ignores_merges_ = false;  // for words that are pieces
  bool keeps_to_words_ = false;
  std::array<std::optional<int32_t>, 256> byte_ids_;
};

// The pieces <0x00> to <0xFF> of a vocabulary; empty if it lacks one.
std::array<std::optional<int32_t>, 256> byte_pieces(const Vocabulary& vocabulary);

}  // namespace megatron::hf
