#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/next_line.h"

namespace megatron {

// Complete lines of a text file, without their line ends.
struct LineChunk {
  std::vector<std::string_view> lines;  // into `buffer`
  int64_t first_line = 0;               // line number of lines[0] in its file, from 1
  std::string buffer;                   // reused for every chunk; zeros follow the last line
};

// Reads a text file in chunks of complete lines. As in Python, \n, \r\n and a lone \r end a line,
// and the last line needs no end. Decompresses gzip and xz files, recognized by their first bytes.
// Not thread safe.
class LineReader {
 public:
  // Readable bytes after each line of a chunk.
  static constexpr size_t kPadding = 64;
  // A chunk and the data computed from it fit into a core's L2 cache.
  static constexpr size_t kDefaultChunkBytes = size_t{1} << 18;

  // Chunks hold about chunk_bytes, more for longer lines. Throws IoError, and FormatError for other
  // kinds of compressed files.
  explicit LineReader(std::filesystem::path path, size_t chunk_bytes = kDefaultChunkBytes,
                      size_t max_line_bytes = size_t{kMaxLineBytes});
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // False at the end of the file. Throws IoError, and FormatError if a compressed file is damaged
  // or a line is longer than max_line_bytes.
  bool next(LineChunk& chunk);

 private:
  class Source;
  class PlainSource;
  class GzipSource;
  class XzSource;

  std::filesystem::path path_;
  size_t chunk_bytes_;
  size_t max_line_bytes_;
  std::unique_ptr<Source> source_;
  std::string rest_;  // bytes after the last chunk
  int64_t num_lines_ = 0;
  bool at_end_ = false;
};

}  // namespace megatron
