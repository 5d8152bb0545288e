#pragma once

#include <unordered_map>

#include "megatron/tokenizers/bert_words.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/word_piece.h"

namespace megatron {

// BERT's words and word pieces (Devlin et al. 2019, arXiv:1810.04805), from vocab.txt: one piece
// per line, whose number is the id. [BOS], [EOS] and <extra_id_0>, <extra_id_1>, ... follow unless
// the file has them. Encoding adds neither [CLS] nor [SEP], and special tokens in text are plain
// text.
//
// Compat: as Megatron-LM core_r0.5.0, so a word may have 200 characters, lower-casing handles the
// final sigma, and an added token's id is the number of distinct lines. Its tokenizer could not
// decode and had no eod; as in later versions decode() joins the pieces and eod is [EOS].
class BertTokenizer final : public Tokenizer {
 public:
  struct Options {
    bool lower_case = true;
    int64_t vocab_extra_ids = 0;
  };

  // Throws IoError, or FormatError if the file lacks [CLS], [SEP], [PAD], [MASK] or [UNK].
  BertTokenizer(const std::string& vocab_file, Options options);

  std::unique_ptr<Encoder> make_encoder() const override;
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_bytes(int32_t id) const override;
  std::string piece(int32_t id) const override;
  std::optional<int32_t> id_of(std::string_view piece) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(ids_.size()); }
  std::optional<int32_t> special_id(SpecialToken token) const override;
  std::vector<int32_t> sentinel_ids() const override { return sentinels_; }
  std::string_view type() const override {
    return options_.lower_case ? "BertWordPieceLowerCase" : "BertWordPieceCase";
  }
  std::string source() const override { return vocab_file_; }
  TokenizerDescription description() const override;

 private:
  class WordEncoder;

  // Appends the id of a token at the end of the vocabulary unless it is there.
  int32_t add_token(const std::string& token);
  std::string vocab_file_;
  Options options_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::string> pieces_;  // by id; empty for an id that a repeated line overrode
  std::vector<int32_t> sentinels_;
  WordPiece word_piece_;
  BertWords words_;
};

}  // namespace megatron
