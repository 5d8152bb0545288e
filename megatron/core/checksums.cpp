#include "megatron/core/checksums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

struct FileSum {
  uint32_t crc = 0;
  int64_t bytes = 0;
};

FileSum sum_of_file(const fs::path& file) {
  const MappedFile mapped(file);
  return {crc32c(mapped.bytes()), static_cast<int64_t>(mapped.bytes().size())};
}

std::string line_of(const FileSum& sum, const std::string& name) {
  return fmt::format("crc32c {:08x} {} {}\n", sum.crc, sum.bytes, name);
}

// The text up to the next space, which it takes from `line`.
std::string_view next_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

std::optional<uint32_t> crc_of_text(std::string_view digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (digits.size() != 8) return std::nullopt;
  uint32_t crc = 0;
  for (const char digit : digits) {
    const size_t value = kDigits.find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    crc = crc * 16 + static_cast<uint32_t>(value);
  }
  return crc;
}

// The sums of a folder by name; empty without a list.
std::map<std::string, FileSum> listed_sums(const fs::path& folder) {
  const fs::path list = folder / kChecksumsFile;
  std::error_code error;
  if (!fs::exists(list, error)) return {};
  const std::string text = read_text(list);
  std::map<std::string, FileSum> sums;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::string_view kind = next_word(line);
    const std::optional<uint32_t> crc = crc_of_text(next_word(line));
    const std::optional<int64_t> bytes = integer_of(std::string(next_word(line)));
    if (kind != "crc32c" || !crc || !bytes || line.empty()) {
      throw FormatError(
          fmt::format("{}: line {} is not \"crc32c SUM BYTES NAME\"; the list is damaged: copy the "
                      "folder again, or delete the list if you trust the files",
                      list.string(), sums.size() + 1));
    }
    sums[std::string(line)] = {*crc, *bytes};
  }
  return sums;
}

void expect_sum(const fs::path& file, const FileSum& want) {
  const FileSum got = sum_of_file(file);
  if (got.crc == want.crc && got.bytes == want.bytes) return;
  throw FormatError(
      fmt::format("{}: has {} bytes with CRC-32C {:08x}, and {} lists {} bytes with {:08x}; the "
                  "file is damaged: copy it again. If it was changed on purpose, delete the list",
                  file.string(), got.bytes, got.crc, kChecksumsFile, want.bytes, want.crc));
}

}  // namespace

void write_checksums(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    std::string name = entry.path().lexically_relative(folder).string();
    if (entry.is_regular_file() && name != kChecksumsFile) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  write_checksums(folder, names);
}

void write_checksums(const fs::path& folder, std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += line_of(sum_of_file(folder / name), name);
  write_text_atomically(folder / kChecksumsFile, text);
}

void expect_checksum(const fs::path& file) {
  const std::map<std::string, FileSum> sums = listed_sums(file.parent_path());
  const auto found = sums.find(file.filename().string());
  if (found != sums.end()) expect_sum(file, found->second);
}

void warn_of_change(const fs::path& file) {
  try {
    expect_checksum(file);
  } catch (const FormatError& error) {
    warn_once(error.what());
  }
}

void expect_checksums(const fs::path& folder) {
  for (const auto& [name, sum] : listed_sums(folder)) expect_sum(folder / name, sum);
}

}  // namespace megatron
