#include "megatron/data/indexed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/parallel_for.h"

namespace megatron {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::string_view kLegacyMagic{"TNTIDX\0\0", 8};
constexpr uint64_t kVersion = 1;
constexpr int64_t kHeaderBytes = 34;
constexpr int64_t kScanGrain = int64_t{1} << 18;  // fewest sequences that pay for a thread

template <class T>
T load(const std::byte* from, int64_t index = 0) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Calls visit(T{}) with the C++ type of the tokens.
template <class Visit>
decltype(auto) with_token_type(TokenDtype dtype, const Visit& visit) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return visit(uint8_t{});
    case TokenDtype::kInt8:
      return visit(int8_t{});
    case TokenDtype::kInt16:
      return visit(int16_t{});
    case TokenDtype::kInt32:
      return visit(int32_t{});
    case TokenDtype::kInt64:
      return visit(int64_t{});
    case TokenDtype::kUint16:
      return visit(uint16_t{});
  }
  throw InternalError("TokenDtype out of range");
}

TokenDtype checked_dtype(uint8_t code, const std::filesystem::path& path) {
  if ((code >= 1 && code <= 5) || code == 8) return static_cast<TokenDtype>(code);
  if (code == 6 || code == 7) {
    throw FormatError(
        fmt::format("{}: element type code {} at offset 17 is floating point, which "
                    "token data never is; is this a dataset of tokens?",
                    path.string(), code));
  }
  throw FormatError(
      fmt::format("{}: element type code {} at offset 17 is not one of 1-5 and 8; the index "
                  "is damaged or of a newer version",
                  path.string(), code));
}

// Opens one file of a dataset; the error for a missing file guesses the user's intention.
MappedFile open_member(const std::filesystem::path& prefix, const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return MappedFile(path);
  const std::string extension = prefix.extension().string();
  const bool has_extension = extension == ".bin" || extension == ".idx";
  throw IoError(fmt::format(
      "{}: not found; a dataset is the files <prefix>.idx and <prefix>.bin{}", path.string(),
      has_extension
          ? fmt::format(", give the prefix {} without {}",
                        std::filesystem::path(prefix).replace_extension().string(), extension)
          : std::string(", check the prefix")));
}

std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    text += c >= 0x20 && c < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text;
}

std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix) {
  std::filesystem::path path = prefix;
  path += suffix;  // not replace_extension: a prefix may contain dots
  return path;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

template <class T>
void write_value(FileWriter& file, T value) {
  file.write(std::as_bytes(std::span<const T, 1>(&value, 1)));
}

}  // namespace

int64_t token_bytes(TokenDtype dtype) {
  return with_token_type(dtype, [](auto token) { return static_cast<int64_t>(sizeof(token)); });
}

std::string_view token_dtype_name(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return "uint8";
    case TokenDtype::kInt8:
      return "int8";
    case TokenDtype::kInt16:
      return "int16";
    case TokenDtype::kInt32:
      return "int32";
    case TokenDtype::kInt64:
      return "int64";
    case TokenDtype::kUint16:
      return "uint16";
  }
  throw InternalError("TokenDtype out of range");
}

TokenDtype token_dtype_for_vocab(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenDtype::kUint16 : TokenDtype::kInt32;
}

std::filesystem::path index_file(const std::filesystem::path& prefix) {
  return with_suffix(prefix, ".idx");
}

std::filesystem::path tokens_file(const std::filesystem::path& prefix) {
  return with_suffix(prefix, ".bin");
}

bool dataset_exists(const std::filesystem::path& prefix) {
  std::error_code ignored;
  return std::filesystem::exists(index_file(prefix), ignored) &&
         std::filesystem::exists(tokens_file(prefix), ignored);
}

int64_t TokenView::operator[](int64_t i) const {
  return with_token_type(dtype_, [&](auto token) {
    return static_cast<int64_t>(load<decltype(token)>(bytes_.data(), i));
  });
}

void TokenView::copy_to(std::span<int64_t> out) const {
  invariant(static_cast<int64_t>(out.size()) == size(), "out has room for exactly these tokens");
  with_token_type(dtype_, [&](auto token) {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      out[i] = static_cast<int64_t>(load<decltype(token)>(bytes_.data(), at));
    }
  });
}

IndexedDataset::IndexedDataset(std::filesystem::path prefix)
    : IndexedDataset(std::move(prefix), Options{}) {}

IndexedDataset::IndexedDataset(std::filesystem::path prefix, Options options)
    : prefix_(std::move(prefix)),
      multimodal_(options.multimodal),
      index_(open_member(prefix_, index_file(prefix_))),
      tokens_(open_member(prefix_, tokens_file(prefix_))) {
  read_header();
  check_sequences();
  check_documents();
}

void IndexedDataset::read_header() {
  const std::string path = index_.path().string();
  const std::span<const std::byte> bytes = index_.bytes();
  const int64_t actual = static_cast<int64_t>(bytes.size());
  const auto starts_with = [&](std::string_view magic) {
    return bytes.size() >= magic.size() &&
           std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
  };

  if (starts_with(kLegacyMagic)) {
    throw Unsupported(
        fmt::format("{}: is a TNTIDX index (--dataset-impl cached or lazy); this version reads "
                    "MMIDIDX; write the dataset again with --dataset-impl mmap",
                    path));
  }
  if (!starts_with(kMagic)) {
    const bool cut = kMagic.starts_with(
        std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    if (!cut) {
      throw FormatError(
          fmt::format("{}: index magic is \"{}\", expected MMIDIDX; is this the .bin file?", path,
                      printable(bytes.first(std::min(bytes.size(), kMagic.size())))));
    }
  }
  if (actual < kHeaderBytes) {
    throw FormatError(fmt::format(
        "{}: index has {} bytes, its header alone takes {}; the file is truncated, write it again",
        path, actual, kHeaderBytes));
  }
  const auto version = load<uint64_t>(bytes.data() + 9);
  if (version != kVersion) {
    throw FormatError(
        fmt::format("{}: index version at offset 9 is {}, expected {}", path, version, kVersion));
  }
  dtype_ = checked_dtype(load<uint8_t>(bytes.data() + 17), index_.path());

  const auto sequences = load<uint64_t>(bytes.data() + 18);
  const auto documents = load<uint64_t>(bytes.data() + 26);
  const uint64_t most = bytes.size();  // prevents overflow of the products below
  const uint64_t per_sequence = multimodal_ ? 13 : 12;
  if (sequences > most / per_sequence || documents > most / 8 ||
      kHeaderBytes + per_sequence * sequences + 8 * documents > most) {
    throw FormatError(fmt::format(
        "{}: index has {} bytes, but {} sequences and {} document entries{} take {:.0f}; the file "
        "is truncated, write it again",
        path, actual, sequences, documents, multimodal_ ? " with modes" : "",
        static_cast<double>(kHeaderBytes) +
            static_cast<double>(per_sequence) * static_cast<double>(sequences) +
            8 * static_cast<double>(documents)));
  }
  num_sequences_ = static_cast<int64_t>(sequences);
  document_index_size_ = static_cast<int64_t>(documents);
  lengths_ = bytes.data() + kHeaderBytes;
  pointers_ = lengths_ + 4 * num_sequences_;
  documents_ = pointers_ + 8 * num_sequences_;
  if (multimodal_) modes_ = documents_ + 8 * document_index_size_;
}

// Later reads rely on these checks: reading a mapped page beyond the end of a file is a bus error.
void IndexedDataset::check_sequences() {
  const int64_t item = token_bytes(dtype_);
  const int64_t tokens_size = static_cast<int64_t>(tokens_.bytes().size());
  std::atomic<int64_t> first_bad{num_sequences_};
  std::atomic<int64_t> total{0};
  parallel_for(num_sequences_, kScanGrain, [&](int64_t begin, int64_t end) {
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t tokens = length(i);
      const int64_t start = pointer(i);
      if (tokens < 0 || start < 0 || start > tokens_size - tokens * item) {
        int64_t known = first_bad.load();
        while (i < known && !first_bad.compare_exchange_weak(known, i)) {
        }
        break;
      }
      sum += tokens;
    }
    total += sum;
  });
  num_tokens_ = total;

  const int64_t bad = first_bad;
  if (bad == num_sequences_) return;
  const int64_t tokens = length(bad);
  const int64_t start = pointer(bad);
  if (tokens < 0 || start < 0) {
    throw FormatError(fmt::format(
        "{}: sequence {} has length {} at offset {} and byte pointer {} at offset {}; both must be "
        "at least 0, the index is damaged",
        index_.path().string(), bad, tokens, kHeaderBytes + 4 * bad, start,
        kHeaderBytes + 4 * num_sequences_ + 8 * bad));
  }
  throw FormatError(fmt::format(
      "{}: has {} bytes, but sequence {} of the index ends at byte {:.0f}; the file is truncated "
      "or belongs to another index",
      tokens_.path().string(), tokens_size, bad,
      static_cast<double>(start) + static_cast<double>(tokens) * static_cast<double>(item)));
}

void IndexedDataset::check_documents() const {
  const std::string path = index_.path().string();
  const int64_t offset = kHeaderBytes + 12 * num_sequences_;
  if (document_index_size_ == 0) {
    throw FormatError(fmt::format("{}: document index is empty, it must hold at least 0", path));
  }
  if (document_start(0) != 0 || document_start(num_documents()) != num_sequences_) {
    throw FormatError(fmt::format(
        "{}: document index at offset {} runs from {} to {}, expected 0 to {} (the number of "
        "sequences); the index is damaged",
        path, offset, document_start(0), document_start(num_documents()), num_sequences_));
  }
  std::atomic<int64_t> descent{-1};
  parallel_for(num_documents(), kScanGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (document_start(i) > document_start(i + 1)) descent = i;
    }
  });
  if (descent >= 0) {
    throw FormatError(
        fmt::format("{}: document {} at offset {} starts after the next one; the "
                    "index is damaged",
                    path, descent.load(), offset + 8 * descent.load()));
  }
}

int64_t IndexedDataset::length(int64_t sequence) const { return load<int32_t>(lengths_, sequence); }

int64_t IndexedDataset::pointer(int64_t sequence) const {
  return load<int64_t>(pointers_, sequence);
}

int64_t IndexedDataset::document_start(int64_t document) const {
  return load<int64_t>(documents_, document);
}

int8_t IndexedDataset::mode(int64_t sequence) const {
  return modes_ == nullptr ? int8_t{0} : load<int8_t>(modes_, sequence);
}

TokenView IndexedDataset::sequence(int64_t index) const {
  if (index < 0 || index >= num_sequences_) {
    throw Error(
        fmt::format("{}: sequence {} is outside [0, {})", prefix_.string(), index, num_sequences_));
  }
  return tokens(index, 0, length(index));
}

TokenView IndexedDataset::tokens(int64_t index, int64_t offset, int64_t count) const {
  if (index < 0 || index >= num_sequences_) {
    throw Error(
        fmt::format("{}: sequence {} is outside [0, {})", prefix_.string(), index, num_sequences_));
  }
  if (offset < 0 || count < 0 || offset > length(index) - count) {
    throw Error(fmt::format("{}: tokens [{}, {}) are outside sequence {} of {} tokens",
                            prefix_.string(), offset, offset + count, index, length(index)));
  }
  const int64_t item = token_bytes(dtype_);
  return {dtype_, tokens_.bytes().subspan(static_cast<size_t>(pointer(index) + offset * item),
                                          static_cast<size_t>(count * item))};
}

TokenView IndexedDataset::slice(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > num_sequences_) {
    throw Error(fmt::format("{}: sequences [{}, {}) are outside [0, {})", prefix_.string(), begin,
                            end, num_sequences_));
  }
  if (begin == end) return {dtype_, {}};
  const int64_t item = token_bytes(dtype_);
  int64_t next = pointer(begin);
  for (int64_t i = begin; i < end; ++i) {
    if (pointer(i) != next) {
      throw FormatError(
          fmt::format("{}: sequence {} does not follow sequence {} in the .bin file, "
                      "so sequences [{}, {}) are not one run",
                      index_.path().string(), i, i - 1, begin, end));
    }
    next += length(i) * item;
  }
  return {dtype_, tokens_.bytes().subspan(static_cast<size_t>(pointer(begin)),
                                          static_cast<size_t>(next - pointer(begin)))};
}

IndexedDatasetBuilder::IndexedDatasetBuilder(std::filesystem::path prefix, Options options)
    : prefix_(std::move(prefix)),
      options_(options),
      tokens_(std::make_unique<FileWriter>(tokens_file(prefix_))) {}

IndexedDatasetBuilder::~IndexedDatasetBuilder() = default;

template <class Token>
void IndexedDatasetBuilder::write_tokens(std::span<const Token> tokens) {
  with_token_type(options_.dtype, [&](auto stored) {
    using Stored = decltype(stored);
    if constexpr (std::is_same_v<Stored, Token>) {
      tokens_->write(std::as_bytes(tokens));
    } else {
      scratch_.resize(tokens.size() * sizeof(Stored));
      for (size_t i = 0; i < tokens.size(); ++i) {
        const auto narrow = static_cast<Stored>(tokens[i]);
        if (static_cast<int64_t>(narrow) != static_cast<int64_t>(tokens[i])) {
          throw Error(fmt::format(
              "{}: token {} does not fit {}; choose a wider type, {} holds ids up to {}",
              tokens_file(prefix_).string(), tokens[i], token_dtype_name(options_.dtype),
              token_dtype_name(options_.dtype), std::numeric_limits<Stored>::max()));
        }
        std::memcpy(scratch_.data() + i * sizeof(Stored), &narrow, sizeof(Stored));
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
  lengths_.push_back(static_cast<int32_t>(length));
  if (options_.multimodal) modes_.push_back(mode);
}

void IndexedDatasetBuilder::add_sequence(std::span<const int32_t> tokens, int8_t mode) {
  write_tokens(tokens);
  append_sequence(static_cast<int64_t>(tokens.size()), mode);
}

void IndexedDatasetBuilder::add_sequence(std::span<const int64_t> tokens, int8_t mode) {
  write_tokens(tokens);
  append_sequence(static_cast<int64_t>(tokens.size()), mode);
}

void IndexedDatasetBuilder::end_document() { document_index_.push_back(num_sequences()); }

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
  if (other.dtype() != options_.dtype) {
    throw DtypeError(
        fmt::format("{}: holds {}, but {} is written as {}; all merged datasets must "
                    "have one element type, preprocess them with the same tokenizer",
                    other.prefix().string(), token_dtype_name(other.dtype()), prefix_.string(),
                    token_dtype_name(options_.dtype)));
  }
  const int64_t first = num_sequences();
  const int64_t count = other.num_sequences();
  lengths_.reserve(lengths_.size() + static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    tokens_->write(other.sequence(i).bytes());
    append_sequence(other.length(i), other.mode(i));
  }
  for (int64_t i = 1; i <= other.num_documents(); ++i) {
    document_index_.push_back(first + other.document_start(i));
  }
  num_tokens_ += other.num_tokens();
}

void IndexedDatasetBuilder::finalize() {
  invariant(tokens_ != nullptr, "finalize is called once");
  if (document_index_.back() != num_sequences()) {
    throw Error(fmt::format("{}: {} sequences follow the last end_document(); close the document",
                            prefix_.string(), num_sequences() - document_index_.back()));
  }
  FileWriter index(index_file(prefix_));
  index.write(kMagic);
  write_value(index, kVersion);
  write_value(index, static_cast<uint8_t>(options_.dtype));
  write_value(index, static_cast<uint64_t>(lengths_.size()));
  write_value(index, static_cast<uint64_t>(document_index_.size()));
  index.write(bytes_of(lengths_));
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    write_value(index, pointer);
    pointer += length * token_bytes(options_.dtype);
  }
  index.write(bytes_of(document_index_));
  index.write(bytes_of(modes_));

  // An old dataset stays until the new one is on the device. An old index must never accompany new
  // tokens, even if the power fails between the renames.
  tokens_->sync();
  index.sync();
  std::error_code ignored;
  std::filesystem::remove(index_file(prefix_), ignored);
  tokens_->commit();
  tokens_.reset();
  index.commit();
}

}  // namespace megatron
