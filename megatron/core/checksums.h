#pragma once

#include <filesystem>
#include <span>
#include <string>

// Checksums of a folder's files, in a file beside them:
//
//   crc32c 1a2b3c4d 51432 model.safetensors
//
// A line for each file: CRC-32C, bytes, and the name relative to the folder.
namespace megatron {

inline constexpr const char* kChecksumsFile = "checksums.crc32c";

// Writes the list of all files in a folder and below, or of some, in place of an older list. Throws
// IoError.
void write_checksums(const std::filesystem::path& folder);
void write_checksums(const std::filesystem::path& folder, std::span<const std::string> names);

// Reads a file whole if the list beside it names it, and throws FormatError unless it is as it was.
// Files that are not in a list are not read. Throws IoError.
void expect_checksum(const std::filesystem::path& file);
// The same for a file that people edit: a warning in place of FormatError.
void warn_of_change(const std::filesystem::path& file);
// The same as expect_checksum() for each file of the folder's list, which all must be there.
void expect_checksums(const std::filesystem::path& folder);

}  // namespace megatron
