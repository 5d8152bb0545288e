#pragma once

#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// Text is a list of ids: decimal numbers separated by single blanks. For data that was tokenized
// elsewhere.
//
// Compat: as in Megatron-LM core_r0.5.0, id V of --vocab-size V is the end of a document, and
// vocab_size() is V + 1.
class NullTokenizer final : public Tokenizer {
 public:
  // REQUIRES: num_ids > 0 (--vocab-size).
  explicit NullTokenizer(int64_t num_ids);

  std::unique_ptr<Encoder> make_encoder() const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_bytes(int32_t id) const override { return " " + piece(id); }
  std::string piece(int32_t id) const override { return std::to_string(id); }
  std::optional<int32_t> id_of(std::string_view piece) const override;
  int64_t vocab_size() const override { return num_ids_ + 1; }
  std::optional<int32_t> special_id(SpecialToken token) const override;
  std::string_view type() const override { return "NullTokenizer"; }
  std::string source() const override { return {}; }
  TokenizerDescription description() const override;

 private:
  int64_t num_ids_;
};

}  // namespace megatron
