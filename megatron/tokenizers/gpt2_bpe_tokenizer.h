#pragma once

#include <filesystem>

#include "megatron/tokenizers/bpe_merges.h"
#include "megatron/tokenizers/string_table.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron {

// GPT-2's byte-level byte-pair encoding (Radford et al. 2019, sec. 2.2), from vocab.json (an object
// token -> id) and merges.txt (a header line, then one "left right" per line, best first).
//
// Compat: a token that is not in vocab.json becomes id 0 in Megatron-LM core_r0.5.0; here too, with
// one warning when the files are loaded.
class Gpt2BpeTokenizer final : public Tokenizer {
 public:
  // Rules for reading merges.txt.
  enum class MergeFileRules {
    kMegatron,     // drops the first line, and a last line without newline (with a warning)
    kHuggingFace,  // drops lines that start with #version
  };

  // Throws IoError or FormatError, also if <|endoftext|> is missing.
  Gpt2BpeTokenizer(const std::string& vocab_file, const std::string& merge_file,
                   MergeFileRules rules = MergeFileRules::kMegatron);
  ~Gpt2BpeTokenizer() override;
  // A directory with vocab.json and merges.txt, as Hugging Face models have it.
  static std::unique_ptr<Gpt2BpeTokenizer> from_directory(const std::filesystem::path& directory);

  std::unique_ptr<Encoder> make_encoder() const override;
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_bytes(int32_t id) const override;
  std::string piece(int32_t id) const override;
  std::optional<int32_t> id_of(std::string_view piece) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(printable_.size()); }
  std::optional<int32_t> special_id(SpecialToken token) const override;
  std::string_view type() const override { return "GPT2BPETokenizer"; }
  std::string source() const override { return vocab_file_; }
  TokenizerDescription description() const override;

 private:
  class WordEncoder;
  struct Content;
  struct Token;

  explicit Gpt2BpeTokenizer(Content content);

  // Throws FormatError if the vocabulary has no such id.
  const Token& token(int32_t id) const;

  std::string vocab_file_;
  std::string merge_file_;
  int32_t eod_;
  std::vector<Token> tokens_;        // by id
  StringTable printable_;            // tokens as written in the vocabulary
  std::vector<int32_t> ids_;         // by index in printable_
  std::vector<int32_t> symbol_ids_;  // by symbol of merges_; the first 256 are the single bytes
  BpeMerges merges_;
  CharClasses classes_;
};

}  // namespace megatron
