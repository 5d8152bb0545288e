#pragma once

#include <array>

#include "megatron/tokenizers/byte_trie.h"
#include "megatron/tokenizers/hf/model.h"
#include "megatron/tokenizers/hf/vocabulary.h"

namespace megatron::hf {

// The most probable segmentation of a word into pieces with log probabilities (Kudo 2018,
// arXiv:1804.10959), by the Viterbi algorithm. A character that is not a piece is unknown; adjacent
// unknown characters are one piece.
class UnigramModel final : public Model {
 public:
  explicit UnigramModel(const ModelFile& file);

  void append(std::string_view word, std::vector<int32_t>& ids) const override;
  std::optional<int32_t> id_of(std::string_view piece) const override {
    return vocabulary_.id_of(piece);
  }
  const std::string* piece(int32_t id) const override { return vocabulary_.piece(id); }
  int64_t size() const override { return static_cast<int64_t>(scores_.size()); }

 private:
  struct Step;
  struct Part;

  std::vector<Step> best_steps(std::string_view word) const;
  std::vector<Part> best_parts(std::string_view word) const;
  void append_part(const Part& part, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;  // by id
  ByteTrie trie_;
  std::optional<int32_t> unknown_id_;
  double unknown_score_ = 0;
  bool falls_back_to_bytes_ = false;
  std::array<std::optional<int32_t>, 256> byte_ids_;
};

}  // namespace megatron::hf
