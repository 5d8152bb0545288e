#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {

// Special tokens. Which of them a tokenizer has depends on its type.
enum class SpecialToken { kCls, kSep, kMask, kPad, kBos, kEos, kEod };
// "cls", "sep", ...
std::string_view name_of(SpecialToken token);

// Identifies a tokenizer in the description that names index caches.
struct TokenizerDescription {
  std::string class_name;                                    // "_GPT2BPETokenizer"
  std::vector<std::optional<std::string>> tokenizer_path;    // the file arguments as given
  std::vector<std::pair<std::string, std::string>> options;  // e.g. {"vocab_extra_ids", "0"}
};

// Encodes text with a cache of words: the fast way to encode much text. For one thread. Must not
// outlive its tokenizer.
class Encoder {
 public:
  virtual ~Encoder() = default;
  // Appends the ids of `text`. Throws FormatError if the tokenizer cannot encode it.
  virtual void append(std::string_view text, std::vector<int32_t>& ids) = 0;
};

// Text <-> ids. Immutable after construction: every call may be made from any thread. Text is
// UTF-8. Each type decides whether special tokens in text are special, and whether encoding adds
// some.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::unique_ptr<Encoder> make_encoder() const = 0;
  // The ids of one text, for small amounts of text.
  virtual std::vector<int32_t> encode(std::string_view text) const;
  // The text of ids; bytes that are not UTF-8 become U+FFFD. Throws FormatError on an unknown id.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // The bytes of an id inside a text: " the", or part of a character. May be empty. By default
  // decode() of the id alone.
  virtual std::string token_bytes(int32_t id) const;
  // An id as written in the vocabulary: "##ing", "<extra_id_0>". Throws FormatError on an unknown
  // id.
  virtual std::string piece(int32_t id) const = 0;
  // The reverse; nothing if the vocabulary has no such entry.
  virtual std::optional<int32_t> id_of(std::string_view piece) const = 0;

  // Before padding.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> special_id(SpecialToken token) const = 0;
  // Throws ConfigError naming the type, its file and the token if there is none.
  int32_t required_id(SpecialToken token) const;
  // The id that ends a document.
  int32_t eod() const { return required_id(SpecialToken::kEod); }
  // The ids of <extra_id_0>, <extra_id_1>, ..., the sentinels of masked spans of a T5.
  virtual std::vector<int32_t> sentinel_ids() const { return {}; }
  // The same; throws ConfigError with the remedy if there are fewer than `count`.
  std::vector<int32_t> required_sentinel_ids(int64_t count) const;

  // The value of --tokenizer-type.
  virtual std::string_view type() const = 0;
  // The file or folder that the vocabulary was read from, for messages; empty if there is none.
  virtual std::string source() const = 0;
  virtual TokenizerDescription description() const = 0;
};

// Names are Megatron's flag names without the dashes; an empty value means a flag that was not
// given.
struct TokenizerConfig {
  std::string tokenizer_type = {};
  std::string vocab_file = {};
  std::string merge_file = {};
  // A SentencePiece model, a tokenizer.json, a TikToken list, or a directory with the files of the
  // type.
  std::string tokenizer_model = {};
  int64_t vocab_size = 0;  // NullTokenizer and TikTokenizer; 0: not given
  int64_t vocab_extra_ids = 0;
  std::string tiktoken_pattern = "v2";
  int64_t tiktoken_num_special_tokens = 1000;
  std::vector<std::string> tokenizer_special_tokens = {};
  bool tokenizer_hf_include_special_tokens = true;

  bool operator==(const TokenizerConfig&) const = default;
};

// The values of --tokenizer-type that make_tokenizer supports.
std::vector<std::string> known_tokenizer_types();

// Throws ConfigError on an unknown type or a missing flag, IoError and FormatError on bad files.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config);

// The smallest multiple of make_vocab_size_divisible_by * tensor_parallel_size that is >=
// vocab_size. Throws ConfigError unless all three are positive.
int64_t padded_vocab_size(int64_t vocab_size, int64_t make_vocab_size_divisible_by,
                          int64_t tensor_parallel_size);

}  // namespace megatron
