#include "megatron/data/indexed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parallel_for.h"

namespace megatron {
namespace {

constexpr int64_t kScanGrain = int64_t{1} << 18;  // fewest sequences that pay for a thread
constexpr int64_t kMaxLength = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxPointer = std::numeric_limits<int64_t>::max() / 8;  // fits in any unit

// The error message for a missing file of a dataset, with a guess at the user's intention.
std::string missing_text(const std::filesystem::path& prefix, const std::filesystem::path& path) {
  const std::string extension = prefix.extension().string();
  const bool has_extension = extension == ".bin" || extension == ".idx";
  return fmt::format(
      "{}: not found; a dataset is the files <prefix>.idx and <prefix>.bin{}", path.string(),
      has_extension
          ? fmt::format(", give the prefix {} without {}",
                        std::filesystem::path(prefix).replace_extension().string(), extension)
          : std::string(", check the prefix"));
}

bool has_member(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

MappedFile open_member(const std::filesystem::path& prefix, const std::filesystem::path& path) {
  if (has_member(path)) return MappedFile(path);
  throw IoError(missing_text(prefix, path));
}

std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix) {
  std::filesystem::path path = prefix;
  path += suffix;  // not replace_extension: a prefix may contain dots
  return path;
}

}  // namespace

std::filesystem::path index_file(const std::filesystem::path& prefix) {
  return with_suffix(prefix, ".idx");
}

std::filesystem::path tokens_file(const std::filesystem::path& prefix) {
  return with_suffix(prefix, ".bin");
}

std::optional<std::string> missing_file_problem(const std::filesystem::path& prefix) {
  for (const std::filesystem::path& path : {index_file(prefix), tokens_file(prefix)}) {
    if (!has_member(path)) return missing_text(prefix, path);
  }
  return std::nullopt;
}

bool dataset_exists(const std::filesystem::path& prefix) {
  std::error_code ignored;
  return std::filesystem::exists(index_file(prefix), ignored) &&
         std::filesystem::exists(tokens_file(prefix), ignored);
}

int64_t TokenView::operator[](int64_t i) const {
  return with_token_type(dtype_, [&](auto token) {
    return static_cast<int64_t>(load_unaligned<decltype(token)>(bytes_.data(), i));
  });
}

void TokenView::copy_to(std::span<int64_t> out) const {
  invariant(static_cast<int64_t>(out.size()) == size(), "out has room for exactly these tokens");
  with_token_type(dtype_, [&](auto token) {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      out[i] = static_cast<int64_t>(load_unaligned<decltype(token)>(bytes_.data(), at));
    }
  });
}

IndexedDataset::IndexedDataset(std::filesystem::path prefix)
    : IndexedDataset(std::move(prefix), Options{}) {}

IndexedDataset::IndexedDataset(std::filesystem::path prefix, Options options)
    : prefix_(std::move(prefix)),
      index_(open_member(prefix_, index_file(prefix_))),
      tokens_(open_member(prefix_, tokens_file(prefix_))),
      layout_(read_index_layout(index_.bytes(), options.multimodal, index_.path())) {
  check_sequences();
  check_documents();
}

// Later reads rely on these checks: reading a mapped page beyond the end of a file is a bus error.
void IndexedDataset::check_sequences() {
  const int64_t item = token_bytes(dtype());
  const int64_t tokens_size = static_cast<int64_t>(tokens_.bytes().size());
  std::atomic<int64_t> first_bad{num_sequences()};
  std::atomic<int64_t> total{0};
  parallel_for(num_sequences(), kScanGrain, [&](int64_t begin, int64_t end) {
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t tokens = length(i);
      const int64_t start = pointer(i);
      if (tokens < 0 || tokens > kMaxLength || start < 0 || start > tokens_size - tokens * item) {
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
  if (bad == num_sequences()) {
    if (num_tokens_ * item < tokens_size) {
      warn(fmt::format(
          "{}: has {} bytes, but the sequences of {} have only {}; if the index belongs to another "
          "dataset, all tokens are wrong: preprocess the data again",
          tokens_.path().string(), tokens_size, index_.path().string(), num_tokens_ * item));
    }
    return;
  }
  const int64_t tokens = length(bad);
  const int64_t start = pointer(bad);
  if (tokens < 0 || start < 0) {
    throw FormatError(fmt::format(
        "{}: sequence {} has length {} at offset {} and byte pointer {} at offset {}; both must be "
        "at least 0, the index is damaged",
        index_.path().string(), bad, tokens, layout_.lengths + layout_.bytes_per_length() * bad,
        start, layout_.pointers + 8 * bad));
  }
  throw FormatError(fmt::format(
      "{}: has {} bytes, but sequence {} of the index ends at byte {:.0f}; the file is truncated "
      "or belongs to another index",
      tokens_.path().string(), tokens_size, bad,
      static_cast<double>(start) + static_cast<double>(tokens) * static_cast<double>(item)));
}

void IndexedDataset::check_documents() const {
  const std::string path = index_.path().string();
  const int64_t offset = layout_.documents;
  if (layout_.document_index_size == 0) {
    throw FormatError(fmt::format("{}: document index is empty, it must hold at least 0", path));
  }
  if (document_start(0) != 0 || document_start(num_documents()) != num_sequences()) {
    throw FormatError(fmt::format(
        "{}: document index at offset {} runs from {} to {}, expected 0 to {} (the number of "
        "sequences); the index is damaged",
        path, offset, document_start(0), document_start(num_documents()), num_sequences()));
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

int64_t IndexedDataset::length(int64_t sequence) const {
  const std::byte* const lengths = index_.bytes().data() + layout_.lengths;
  return layout_.format == IndexFormat::kMmididx ? load_unaligned<int32_t>(lengths, sequence)
                                                 : load_unaligned<int64_t>(lengths, sequence);
}

int64_t IndexedDataset::pointer(int64_t sequence) const {
  const auto units = load_unaligned<int64_t>(index_.bytes().data() + layout_.pointers, sequence);
  return std::clamp(units, -kMaxPointer, kMaxPointer) * layout_.bytes_per_pointer_unit();
}

int64_t IndexedDataset::document_start(int64_t document) const {
  return load_unaligned<int64_t>(index_.bytes().data() + layout_.documents, document);
}

int8_t IndexedDataset::mode(int64_t sequence) const {
  if (!multimodal()) return 0;
  return load_unaligned<int8_t>(index_.bytes().data() + layout_.modes, sequence);
}

TokenView IndexedDataset::sequence(int64_t index) const {
  if (index < 0 || index >= num_sequences()) {
    throw Error(fmt::format("{}: sequence {} is outside [0, {})", prefix_.string(), index,
                            num_sequences()));
  }
  return tokens(index, 0, length(index));
}

TokenView IndexedDataset::tokens(int64_t index, int64_t offset, int64_t count) const {
  if (index < 0 || index >= num_sequences()) {
    throw Error(fmt::format("{}: sequence {} is outside [0, {})", prefix_.string(), index,
                            num_sequences()));
  }
  if (offset < 0 || count < 0 || offset > length(index) - count) {
    throw Error(fmt::format("{}: tokens [{}, {}) are outside sequence {} of {} tokens",
                            prefix_.string(), offset, offset + count, index, length(index)));
  }
  const int64_t item = token_bytes(dtype());
  return {dtype(), tokens_.bytes().subspan(static_cast<size_t>(pointer(index) + offset * item),
                                           static_cast<size_t>(count * item))};
}

TokenView IndexedDataset::slice(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > num_sequences()) {
    throw Error(fmt::format("{}: sequences [{}, {}) are outside [0, {})", prefix_.string(), begin,
                            end, num_sequences()));
  }
  if (begin == end) return {dtype(), {}};
  const int64_t item = token_bytes(dtype());
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
  return {dtype(), tokens_.bytes().subspan(static_cast<size_t>(pointer(begin)),
                                           static_cast<size_t>(next - pointer(begin)))};
}

}  // namespace megatron
