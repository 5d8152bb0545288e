#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "megatron/data/line_reader.h"

namespace megatron {

// The lines of a file, read in chunks of so many bytes.
inline std::vector<std::string> read_lines(const std::filesystem::path& path, size_t chunk_bytes) {
  LineReader reader(path, chunk_bytes);
  LineChunk chunk;
  std::vector<std::string> lines;
  while (reader.next(chunk)) {
    EXPECT_EQ(chunk.first_line, static_cast<int64_t>(lines.size()) + 1);
    for (const std::string_view line : chunk.lines) {
      lines.emplace_back(line);
      const char* const end = chunk.buffer.data() + chunk.buffer.size();
      EXPECT_LE(line.data() + line.size() + LineReader::kPadding, end);
    }
  }
  return lines;
}

}  // namespace megatron
