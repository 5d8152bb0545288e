#include "megatron/data/line_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/parts.h"
#include "megatron/data/xz_decoder.h"

namespace megatron {
namespace {

int open_for_reading(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  int reason = descriptor < 0 ? errno : 0;
  if (reason == 0 && ::fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) reason = EISDIR;
  if (reason == 0) return descriptor;
  if (descriptor >= 0) ::close(descriptor);
  throw IoError(
      fmt::format("{}: cannot open: {}; check the path", path.string(), std::strerror(reason)));
}

// The compression of a text file.
enum class Packing { kNone, kGzip, kXz };

// Detects the compression by the first bytes. A pipe cannot be read twice, so its name decides.
Packing packing_of(const std::filesystem::path& path) {
  using namespace std::string_view_literals;
  struct Kind {
    std::string_view first_bytes;
    const char* extension;
    const char* name;
  };
  constexpr std::array kKinds = {
      Kind{"\x1f\x8b"sv, ".gz", "gzip"}, Kind{"\xfd\x37zXZ\0"sv, ".xz", "xz"},
      Kind{"BZh9"sv, ".bz2", "bzip2"}, Kind{"\x28\xb5\x2f\xfd"sv, ".zst", "Zstandard"},
      Kind{"PK\x03\x04"sv, ".zip", "zip"}};
  std::array<char, 6> first{};
  const int descriptor = open_for_reading(path);
  const ssize_t got = ::pread(descriptor, first.data(), first.size(), 0);
  ::close(descriptor);
  const bool is_pipe = got < 0;
  const std::string_view start(first.data(), is_pipe ? 0 : static_cast<size_t>(got));
  for (const Kind& kind : kKinds) {
    const bool is_it =
        is_pipe ? path.extension() == kind.extension : start.starts_with(kind.first_bytes);
    if (!is_it) continue;
    if (kind.name == "gzip"sv) return Packing::kGzip;
    if (kind.name == "xz"sv) return Packing::kXz;
    throw FormatError(fmt::format("{}: this is a {} file; unpack it, or pack it with gzip or xz",
                                  path.string(), kind.name));
  }
  return Packing::kNone;
}

// One past the last line end in `text`; 0 if there is none. A final \r does not count, because it
// may be half of a \r\n.
size_t end_of_last_line(std::string_view text) {
  // rfind() scans byte by byte, which is slow in long lines.
  const auto end_of_last = [&](char c, size_t size) -> size_t {
    const void* const found = ::memrchr(text.data(), c, size);
    return found == nullptr
               ? 0
               : static_cast<size_t>(static_cast<const char*>(found) - text.data()) + 1;
  };
  const size_t newline = end_of_last('\n', text.size());
  if (newline > 0 || text.empty()) return newline;
  return end_of_last('\r', text.size() - 1);
}

void split_lines(std::string_view text, std::vector<std::string_view>& lines) {
  lines.clear();
  const auto find = [&](char c, size_t from) { return std::min(text.find(c, from), text.size()); };
  size_t newline = find('\n', 0);
  size_t carriage_return = find('\r', 0);
  for (size_t begin = 0; begin < text.size();) {
    // Searches again only after passing the last hit, so a file without one of them is searched
    // once.
    if (newline < begin) newline = find('\n', begin);
    if (carriage_return < begin) carriage_return = find('\r', begin);
    const size_t end = std::min(newline, carriage_return);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
    if (end == carriage_return && begin == newline) ++begin;
  }
}

}  // namespace

class LineReader::Source {
 public:
  virtual ~Source() = default;
  // Reads up to `size` bytes; 0 at the end of the file.
  virtual size_t read(char* to, size_t size) = 0;
};

class LineReader::PlainSource final : public Source {
 public:
  explicit PlainSource(const std::filesystem::path& path)
      : path_(path), descriptor_(open_for_reading(path)) {}
  ~PlainSource() override { ::close(descriptor_); }

  size_t read(char* to, size_t size) override {
    while (true) {
      const ssize_t got = ::read(descriptor_, to, size);
      if (got >= 0) return static_cast<size_t>(got);
      if (errno != EINTR) {
        throw IoError(fmt::format("{}: cannot read: {}", path_.string(), std::strerror(errno)));
      }
    }
  }

 private:
  std::filesystem::path path_;
  int descriptor_;
};

class LineReader::GzipSource final : public Source {
 public:
  explicit GzipSource(const std::filesystem::path& path)
      : path_(path), file_(::gzdopen(open_for_reading(path), "rb")) {
    if (file_ == nullptr) throw IoError(path.string() + ": cannot open: out of memory");
    ::gzbuffer(file_, 1u << 18);
  }
  ~GzipSource() override { ::gzclose(file_); }

  size_t read(char* to, size_t size) override {
    const int got = ::gzread(file_, to, static_cast<unsigned>(std::min(size, size_t{1} << 30)));
    int status = Z_OK;
    const char* const reason = ::gzerror(file_, &status);
    if (got < 0 || status == Z_BUF_ERROR) {  // Z_BUF_ERROR: the file ends too early
      throw FormatError(
          fmt::format("{}: damaged gzip file: {}; unpack it by hand to see how far "
                      "it is readable",
                      path_.string(), reason));
    }
    return static_cast<size_t>(got);
  }

 private:
  std::filesystem::path path_;
  gzFile file_;
};

class LineReader::XzSource final : public Source {
 public:
  explicit XzSource(const std::filesystem::path& path) : path_(path), packed_(path) {}

  size_t read(char* to, size_t size) override {
    using Result = XzDecoder::Result;
    std::span<char> rest(to, size);
    while (rest.size() == size && !at_end_) {
      if (input_.empty()) {
        input_ = std::span(buffer_).first(packed_.read(buffer_.data(), buffer_.size()));
      }
      const Result result = decoder_.run(input_, rest, input_.empty());
      at_end_ = result == Result::kEnd;
      if (result == Result::kMore || at_end_) continue;
      throw FormatError(
          fmt::format("{}: damaged xz file: {}; unpack it by hand to see how far it is readable",
                      path_.string(),
                      result == Result::kTruncated  ? "it ends too early"
                      : result == Result::kNoMemory ? "there is not enough memory to unpack it"
                                                    : "its data or checksums are wrong"));
    }
    return size - rest.size();
  }

 private:
  std::filesystem::path path_;
  PlainSource packed_;
  XzDecoder decoder_;
  std::vector<char> buffer_ = std::vector<char>(size_t{1} << 18);
  std::span<const char> input_;  // the rest of buffer_
  bool at_end_ = false;
};

LineReader::LineReader(std::filesystem::path path, size_t chunk_bytes, size_t max_line_bytes)
    : path_(std::move(path)), chunk_bytes_(chunk_bytes), max_line_bytes_(max_line_bytes) {
  switch (packing_of(path_)) {
    case Packing::kNone:
      source_ = std::make_unique<PlainSource>(path_);
      break;
    case Packing::kGzip:
      source_ = std::make_unique<GzipSource>(path_);
      break;
    case Packing::kXz:
      if constexpr (kHasLzma) {
        source_ = std::make_unique<XzSource>(path_);
      } else {
        refuse_missing(path_.string() + ": xz", "MG_LZMA");
      }
      break;
  }
}

LineReader::~LineReader() = default;

bool LineReader::next(LineChunk& chunk) {
  std::string& buffer = chunk.buffer;
  size_t size = rest_.size();
  size_t wanted = std::max(chunk_bytes_, size);
  buffer.resize(wanted + kPadding);
  std::copy(rest_.begin(), rest_.end(), buffer.begin());
  size_t cut = 0;
  while (true) {
    while (!at_end_ && size < wanted) {
      const size_t got = source_->read(buffer.data() + size, wanted - size);
      if (got == 0) at_end_ = true;
      size += got;
    }
    cut = at_end_ ? size : end_of_last_line({buffer.data(), size});
    if (cut > 0 || at_end_) break;
    if (size > max_line_bytes_) {
      throw FormatError(
          fmt::format("{}: {}", path_.string(),
                      too_long_line(num_lines_ + 1, static_cast<int64_t>(max_line_bytes_))));
    }
    // One line is longer than the buffer. One byte beyond the limit shows that it is exceeded.
    wanted = std::max(size + 1, std::min(2 * wanted, max_line_bytes_ + 1));
    buffer.resize(wanted + kPadding);
  }
  rest_.assign(buffer, cut, size - cut);
  std::fill_n(buffer.begin() + static_cast<int64_t>(cut), kPadding, '\0');
  split_lines({buffer.data(), cut}, chunk.lines);
  chunk.first_line = num_lines_ + 1;
  num_lines_ += static_cast<int64_t>(chunk.lines.size());
  return cut > 0;
}

}  // namespace megatron
