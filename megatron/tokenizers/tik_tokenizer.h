#pragma once

#include <array>
#include <unordered_map>

#include "megatron/tokenizers/bpe_merges.h"
#include "megatron/tokenizers/byte_trie.h"
#include "megatron/tokenizers/gpt4o_split.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// Byte-pair encoding over a list of ranked tokens, a JSON array of {"rank", "token_bytes" (base64),
// "token_str"}, best first. Special tokens have the first ids and are recognised in text; token
// `rank` has id rank + number of special tokens.
//
// Compat: Megatron-LM of 2025 and later.
class TikTokenizer final : public Tokenizer {
 public:
  enum class Pattern { kV1, kV2 };
  struct Options {
    Pattern pattern = Pattern::kV2;
    int64_t num_special_tokens = 1000;  // filled up with <SPECIAL_i>
    int64_t vocab_size = 0;             // including special tokens; 0: 131072
    // Empty: <unk> <s> </s> <mask> <pad> <cls> <sep>, which any other list must contain.
    std::vector<std::string> special_tokens = {};
  };

  // Throws IoError, FormatError on a bad file, ConfigError on options that contradict each other.
  TikTokenizer(const std::string& model_file, Options options);

  std::unique_ptr<Encoder> make_encoder() const override;
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_bytes(int32_t id) const override { return bytes_of(id); }
  std::string piece(int32_t id) const override { return with_valid_text(id); }
  std::optional<int32_t> id_of(std::string_view piece) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> special_id(SpecialToken token) const override;
  std::string_view type() const override { return "TikTokenizer"; }
  std::string source() const override { return model_file_; }
  TokenizerDescription description() const override;

 private:
  class WordEncoder;

  std::string with_valid_text(int32_t id) const;
  const std::string& bytes_of(int32_t id) const;

  std::string model_file_;
  Options options_;
  std::vector<std::string> tokens_;               // by id, as bytes
  std::unordered_map<std::string, int32_t> ids_;  // of all but the special tokens
  ByteTrie specials_;
  std::array<bool, 256> begins_special_{};  // by byte
  // The splitter of the pattern.
  std::optional<CharClasses> classes_;
  std::optional<CasedClasses> cased_classes_;
  BpeMerges merges_;
};

}  // namespace megatron
