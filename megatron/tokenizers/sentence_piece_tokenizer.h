#pragma once

#include <unordered_map>

#include "megatron/tokenizers/sentence_piece_model.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The three tokenizers of Megatron-LM that read a SentencePiece model.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  enum class Kind {
    // SentencePieceTokenizer: the pieces, then <CLS>, <SEP>, <EOD>, <MASK>, the pieces of pad, bos
    // and eos or else <PAD>, <BOS>, <EOS>, then <extra_id_0>, ..., each unless it is there. These
    // are special in text; the text between them is encoded part by part.
    kWithSpecials,
    // GPTSentencePieceTokenizer: the unmodified model.
    kPlain,
    // Llama2Tokenizer: the same, and every text begins with bos, the empty one too.
    // Compat: Megatron-LM core_r0.5.0; later versions add no bos.
    kLlama2,
  };
  struct Options {
    Kind kind = Kind::kWithSpecials;
    int64_t vocab_extra_ids = 0;  // kWithSpecials only
  };

  // Throws IoError, FormatError, and ConfigError for extra ids with a kind that does not support
  // them.
  SentencePieceTokenizer(const std::string& model_file, Options options);
  ~SentencePieceTokenizer() override;

  std::unique_ptr<Encoder> make_encoder() const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_bytes(int32_t id) const override;
  std::string piece(int32_t id) const override;
  std::optional<int32_t> id_of(std::string_view piece) const override;
  int64_t vocab_size() const override;
  std::optional<int32_t> special_id(SpecialToken token) const override;
  std::vector<int32_t> sentinel_ids() const override { return sentinels_; }
  std::string_view type() const override;
  std::string source() const override { return model_.file(); }
  TokenizerDescription description() const override;

 private:
  class TextEncoder;
  struct Special;

  // Registers a special token; it gets the next id if the vocabulary lacks it.
  int32_t add_special(const std::string& text);
  void add_all_specials();
  // Calls encode_part(text) for the text between special tokens, and appends the ids of these
  // tokens.
  template <class EncodePart>
  void append(std::string_view text, std::vector<int32_t>& ids,
              const EncodePart& encode_part) const;

  SentencePieceModel model_;
  Options options_;
  std::vector<std::string> added_;                          // tokens after the model's pieces
  std::vector<Special> specials_;                           // in the order of their registration
  std::unordered_map<int32_t, std::string> special_texts_;  // by id
  std::vector<int32_t> sentinels_;
};

}  // namespace megatron
