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
// Text goes this way: tokens that were added are cut out; what lies between them is normalised, cut
// at the added tokens that are looked for in normalised text, and cut into words; the model turns
// words into ids; the special tokens that surround a text are put around all.
//
// eod is eos. A special token that no file names is looked for among the usual ones of that name.
class HfTokenizer final : public Tokenizer {
 public:
  struct Options {
    std::string type = "HuggingFaceTokenizer";     // or PretrainedFromHF
    int64_t vocab_extra_ids = 0;                   // <extra_id_0>, ...: added unless they are there
    bool include_special_tokens = true;            // around each text
    std::vector<std::string> special_tokens = {};  // added unless they are there
  };

  // Throws IoError, FormatError on broken files and on parts that are not available.
  HfTokenizer(const std::string& path, Options options);

  std::unique_ptr<Encoder> make_encoder() const override;
  std::vector<int32_t> encode(std::string_view text) const override;
  // Compat: as there, ids that no token has are left out, and an added token that is looked for in
  // normalised text appears in that form.
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
  // A token that is there already gets the new marks.
  void add_token(AddedToken token);
  int32_t next_id() const;
  void find_special_ids(const HfFiles& files);
  const std::string* text_of(int32_t id) const;
  // What decode() writes for an id, before its decoder; null: nothing.
  const std::string* decoded_piece(int32_t id) const;

  Options options_;
  std::string source_;
  Normalizer normalizer_;
  bool normalizes_ = false;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<Model> model_;
  Surroundings surroundings_;
  Decoder decoder_;
  Decoder byte_decoder_;  // the same, but bytes that are no UTF-8 stay
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
