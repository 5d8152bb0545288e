#include "megatron/data/line_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "megatron/core/error.h"

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

// One past the last line end in `text`; 0 if there is none. A \r that ends the text may be half of
// a \r\n, so it does not count.
size_t end_of_last_line(std::string_view text) {
  const size_t newline = text.rfind('\n');
  if (newline != std::string_view::npos) return newline + 1;
  if (text.size() < 2) return 0;
  const size_t carriage_return = text.rfind('\r', text.size() - 2);
  return carriage_return == std::string_view::npos ? 0 : carriage_return + 1;
}

void split_lines(std::string_view text, std::vector<std::string_view>& lines) {
  lines.clear();
  const auto find = [&](char c, size_t from) { return std::min(text.find(c, from), text.size()); };
  size_t newline = find('\n', 0);
  size_t carriage_return = find('\r', 0);
  for (size_t begin = 0; begin < text.size();) {
    // Searched again only once passed: a file without one of the two is searched once for it.
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

LineReader::LineReader(std::filesystem::path path, size_t chunk_bytes)
    : path_(std::move(path)), chunk_bytes_(chunk_bytes) {
  if (path_.extension() == ".gz") {
    source_ = std::make_unique<GzipSource>(path_);
  } else {
    source_ = std::make_unique<PlainSource>(path_);
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
    wanted *= 2;  // one line is longer than the buffer
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
