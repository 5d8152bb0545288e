#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/file.h"
#include "megatron/data/dataset_index.h"
#include "megatron/data/token_dtype.h"

namespace megatron {

// A dataset is two files. `<prefix>.bin` holds the tokens without header or padding. `<prefix>.idx`
// locates each sequence, in a format of dataset_index.h.

// `<prefix>.idx` and `<prefix>.bin`.
std::filesystem::path index_file(const std::filesystem::path& prefix);
std::filesystem::path tokens_file(const std::filesystem::path& prefix);
// IndexedDataset's error message if one of them is missing.
std::optional<std::string> missing_file_problem(const std::filesystem::path& prefix);
// True if both files exist.
bool dataset_exists(const std::filesystem::path& prefix);

// Borrowed tokens of one element type, as in the mapped file.
class TokenView {
 public:
  TokenView(TokenDtype dtype, std::span<const std::byte> bytes) : dtype_(dtype), bytes_(bytes) {}

  TokenDtype dtype() const { return dtype_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()) / token_bytes(dtype_); }
  // REQUIRES: 0 <= i < size().
  int64_t operator[](int64_t i) const;
  // Widens all tokens. REQUIRES: out.size() == size().
  void copy_to(std::span<int64_t> out) const;

 private:
  TokenDtype dtype_;
  std::span<const std::byte> bytes_;
};

// Reads one dataset through memory maps; opening reads only the index. Reading is thread safe.
class IndexedDataset {
 public:
  struct Options {
    bool multimodal = false;  // the index ends with one mode per sequence
  };

  // Throws IoError if a file is missing or cannot be read, FormatError if the two files are not a
  // dataset (magic, version, element type, truncation, indices out of range).
  explicit IndexedDataset(std::filesystem::path prefix);
  IndexedDataset(std::filesystem::path prefix, Options options);

  const std::filesystem::path& prefix() const { return prefix_; }
  TokenDtype dtype() const { return layout_.dtype; }
  IndexFormat format() const { return layout_.format; }
  int64_t num_sequences() const { return layout_.num_sequences; }
  int64_t num_documents() const { return layout_.document_index_size - 1; }
  int64_t num_tokens() const { return num_tokens_; }
  bool multimodal() const { return layout_.modes != 0; }

  // Tokens of a sequence. REQUIRES: 0 <= sequence < num_sequences(), as below.
  int64_t length(int64_t sequence) const;
  // First sequence of a document; document_start(num_documents()) == num_sequences().
  int64_t document_start(int64_t document) const;
  // 0 unless the dataset is multimodal.
  int8_t mode(int64_t sequence) const;

  // Throws Error if the range is not inside the dataset.
  TokenView sequence(int64_t sequence) const;
  TokenView tokens(int64_t sequence, int64_t offset, int64_t count) const;
  // The tokens of sequences [begin, end), which are contiguous in the file.
  TokenView slice(int64_t begin, int64_t end) const;

 private:
  int64_t pointer(int64_t sequence) const;
  void check_sequences();
  void check_documents() const;

  std::filesystem::path prefix_;
  MappedFile index_;
  MappedFile tokens_;
  IndexLayout layout_;
  int64_t num_tokens_ = 0;
};

// Writes a dataset. The files appear in finalize(), the index last: an interrupted run leaves no
// dataset. Not thread safe.
class IndexedDatasetBuilder {
 public:
  struct Options {
    TokenDtype dtype = TokenDtype::kInt32;
    bool multimodal = false;
    IndexFormat format = IndexFormat::kMmididx;
  };

  // Throws IoError if `<prefix>.bin` cannot be created.
  IndexedDatasetBuilder(std::filesystem::path prefix, Options options);
  ~IndexedDatasetBuilder();

  // Appends one sequence to the current document. Throws Error if a token does not fit the dtype.
  void add_sequence(std::span<const int32_t> tokens, int8_t mode = 0);
  void add_sequence(std::span<const int64_t> tokens, int8_t mode = 0);
  // Closes the current document, which may be empty.
  void end_document();
  // Appends and closes a document of sequences of the given lengths, which add up to tokens.size().
  // `modes` is empty or has one entry per sequence.
  void add_document(std::span<const int32_t> tokens, std::span<const int32_t> lengths,
                    std::span<const int8_t> modes = {});
  // Appends every document of another dataset. Throws DtypeError if its element type differs.
  void add_dataset(const IndexedDataset& other);

  int64_t num_sequences() const { return static_cast<int64_t>(contents_.lengths.size()); }
  int64_t num_documents() const {
    return static_cast<int64_t>(contents_.document_index.size()) - 1;
  }
  int64_t num_tokens() const { return num_tokens_; }

  // Completes the dataset. Throws IoError, and Error if sequences follow the last end_document().
  void finalize();

 private:
  template <class Token>
  void write_tokens(std::span<const Token> tokens);
  void append_sequence(int64_t length, int8_t mode);

  std::filesystem::path prefix_;
  Options options_;
  std::unique_ptr<FileWriter> tokens_;
  IndexContents contents_;
  std::vector<std::byte> scratch_;
  int64_t num_tokens_ = 0;
};

}  // namespace megatron
