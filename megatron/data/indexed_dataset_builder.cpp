#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/indexed_dataset.h"

namespace megatron {

IndexedDatasetBuilder::IndexedDatasetBuilder(std::filesystem::path prefix, Options options)
    : prefix_(std::move(prefix)),
      options_(options),
      tokens_(std::make_unique<FileWriter>(tokens_file(prefix_))) {
  contents_.dtype = options.dtype;
}

IndexedDatasetBuilder::~IndexedDatasetBuilder() = default;

namespace {

template <class Stored, class Token>
bool fits(Token token) {
  return static_cast<int64_t>(static_cast<Stored>(token)) == static_cast<int64_t>(token);
}

constexpr size_t kBlock = 64;

// Writes kBlock tokens as integers of type Stored; false if one of them does not fit. The constant
// count lets the compiler vectorize.
template <class Stored, class Token>
bool narrow_block(const Token* tokens, std::byte* to) {
  std::array<Stored, kBlock> stored;
  Token wrong = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    stored[i] = static_cast<Stored>(tokens[i]);
    wrong |= static_cast<Token>(stored[i]) ^ tokens[i];
  }
  std::memcpy(to, stored.data(), sizeof(stored));
  return wrong == 0;
}

// Writes the tokens as numbers of type Stored; false if one of them does not fit.
template <class Stored, class Token>
bool narrow(std::span<const Token> tokens, std::byte* to) {
  bool fit = true;
  size_t i = 0;
  if constexpr (std::is_integral_v<Stored>) {
    for (; i + kBlock <= tokens.size(); i += kBlock) {
      fit &= narrow_block<Stored>(tokens.data() + i, to + i * sizeof(Stored));
    }
  }
  for (; i < tokens.size(); ++i) {
    const auto stored = static_cast<Stored>(tokens[i]);
    std::memcpy(to + i * sizeof(Stored), &stored, sizeof(Stored));
    fit &= fits<Stored>(tokens[i]);
  }
  return fit;
}

}  // namespace

template <class Token>
void IndexedDatasetBuilder::write_tokens(std::span<const Token> tokens) {
  with_token_type(contents_.dtype, [&](auto stored) {
    using Stored = decltype(stored);
    if constexpr (std::is_same_v<Stored, Token>) {
      tokens_->write(std::as_bytes(tokens));
    } else {
      scratch_.resize(tokens.size() * sizeof(Stored));
      if (!narrow<Stored>(tokens, scratch_.data())) {
        const Token token = *std::find_if_not(tokens.begin(), tokens.end(), fits<Stored, Token>);
        throw Error(
            fmt::format("{}: token {} does not fit {}; choose a wider type, {} holds ids up to {}",
                        tokens_file(prefix_).string(), token, token_dtype_name(contents_.dtype),
                        token_dtype_name(contents_.dtype), std::numeric_limits<Stored>::max()));
      }
      tokens_->write(scratch_);
    }
  });
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetBuilder::append_sequence(int64_t length, int8_t mode) {
  if (length > std::numeric_limits<int32_t>::max()) {
    throw Error(fmt::format("{}: a sequence has {} tokens, the format holds {} at most; cut it",
                            tokens_file(prefix_).string(), length,
                            std::numeric_limits<int32_t>::max()));
  }
  contents_.lengths.push_back(static_cast<int32_t>(length));
  if (options_.multimodal) contents_.modes.push_back(mode);
}

void IndexedDatasetBuilder::add_sequence(std::span<const int32_t> tokens, int8_t mode) {
  write_tokens(tokens);
  append_sequence(static_cast<int64_t>(tokens.size()), mode);
}

void IndexedDatasetBuilder::add_sequence(std::span<const int64_t> tokens, int8_t mode) {
  write_tokens(tokens);
  append_sequence(static_cast<int64_t>(tokens.size()), mode);
}

void IndexedDatasetBuilder::end_document() { contents_.document_index.push_back(num_sequences()); }

void IndexedDatasetBuilder::add_document(std::span<const int32_t> tokens,
                                         std::span<const int32_t> lengths,
                                         std::span<const int8_t> modes) {
  int64_t total = 0;
  for (const int32_t length : lengths) total += length;
  invariant(total == static_cast<int64_t>(tokens.size()), "the lengths add up to the tokens");
  invariant(modes.empty() || modes.size() == lengths.size(), "one mode per sequence");
  write_tokens(tokens);
  for (size_t i = 0; i < lengths.size(); ++i) {
    append_sequence(lengths[i], modes.empty() ? int8_t{0} : modes[i]);
  }
  end_document();
}

void IndexedDatasetBuilder::add_dataset(const IndexedDataset& other) {
  if (other.dtype() != contents_.dtype) {
    throw DtypeError(
        fmt::format("{}: holds {}, but {} is written as {}; all merged datasets must "
                    "have one element type, preprocess them with the same tokenizer",
                    other.prefix().string(), token_dtype_name(other.dtype()), prefix_.string(),
                    token_dtype_name(contents_.dtype)));
  }
  const int64_t first = num_sequences();
  const int64_t count = other.num_sequences();
  contents_.lengths.reserve(contents_.lengths.size() + static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    tokens_->write(other.sequence(i).bytes());
    append_sequence(other.length(i), other.mode(i));
  }
  for (int64_t i = 1; i <= other.num_documents(); ++i) {
    contents_.document_index.push_back(first + other.document_start(i));
  }
  num_tokens_ += other.num_tokens();
}

void IndexedDatasetBuilder::finalize() {
  invariant(tokens_ != nullptr, "finalize is called once");
  if (contents_.document_index.back() != num_sequences()) {
    throw Error(fmt::format("{}: {} sequences follow the last end_document(); close the document",
                            prefix_.string(), num_sequences() - contents_.document_index.back()));
  }
  FileWriter index(index_file(prefix_));
  write_index(index, options_.format, contents_);

  commit_together(*tokens_, index);
  tokens_.reset();
}

}  // namespace megatron
