#pragma once

#include <map>
#include <memory>

#include "megatron/tokenizers/hf/added_tokens.h"
#include "megatron/tokenizers/hf/decoder.h"
#include "megatron/tokenizers/hf/hf_files.h"
#include "megatron/tokenizers/hf/model.h"
#include "megatron/tokenizers/hf/normalizer.h"
#include "megatron/tokenizers/hf/post_processor.h"
#include "megatron/tokenizers/hf/pre_tokenizer.h"
#include "megatron/tokenizers/hf/text_cuts.h"
#include "megatron/tokenizers/hf/vocabulary.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::hf {

// The tokenizer of a Hugging Face model, from tokenizer.json and the files beside it.
//
// The pipeline: match added tokens; normalise the text between them; match added tokens in
// normalised text; pre-tokenize into words; encode words with the model; add the special tokens
// around the text.
//
// eod is eos. For a special token that no file names, tries its usual spellings.
class HfTokenizer final : public Tokenizer {
 public:
  struct Options {
    std::string type = "HuggingFaceTokenizer";     // or PretrainedFromHF
    int64_t vocab_extra_ids = 0;                   // <extra_id_0>, ...: added if missing
    bool include_special_tokens = true;            // around each text
    std::vector<std::string> special_tokens = {};  // added if missing
  };

  // Throws IoError, FormatError for invalid files and unsupported components.
  HfTokenizer(const std::string& path, Options options);

  std::unique_ptr<Encoder> make_encoder() const override;
  std::vector<int32_t> encode(std::string_view text) const override;
  // Compat: as in the library, skips ids without a token, and decodes an added token that is
  // matched in normalised text to its normalised form.
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_bytes(int32_t id) const override;
  std::string piece(int32_t id) const override;
  std::optional<int32_t> id_of(std::string_view piece) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> special_id(SpecialToken token) const override;
  std::vector<int32_t> sentinel_ids() const override { return sentinels_; }
  std::string_view type() const override { return options_.type; }
  std::string source() const override { return source_; }
  TokenizerDescription description() const override;

 private:
  class TextEncoder;

  void build(const HfFiles& files);
  void add_all_tokens(const HfFiles& files);
  // Replaces the properties of an existing token.
  void add_token(AddedToken token);
  int32_t next_id() const;
  void find_special_ids(const HfFiles& files);
  const std::string* text_of(int32_t id) const;
  // The piece of an id, before the decoder; null: none.
  const std::string* decoded_piece(int32_t id) const;

  Options options_;
  std::string source_;
  Normalizer normalizer_;
  bool normalizes_ = false;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<Model> model_;
  PostProcessor post_processor_;
  Decoder decoder_;
  Decoder byte_decoder_;  // the same, but keeps bytes that are not UTF-8
  bool removes_extra_blanks_ = false;
  std::vector<AddedToken> added_;
  Vocabulary added_ids_;                         // of added_
  std::map<int32_t, std::string> normal_texts_;  // of added tokens, where it differs
  TokenFinder raw_tokens_;
  TokenFinder normalized_tokens_;
  TextCuts cuts_;
  int64_t vocab_size_ = 0;
  std::map<SpecialToken, int32_t> special_ids_;
  std::vector<int32_t> sentinels_;
};

}  // namespace megatron::hf
