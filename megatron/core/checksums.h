#pragma once

#include <filesystem>
#include <span>
#include <string>

// Checksums of a folder's files, in a file beside them:
//
//   crc32c 1a2b3c4d 51432 model.safetensors
//
// One line per file: CRC-32C, bytes, and the name relative to the folder.
namespace megatron {

inline constexpr const char* kChecksumsFile = "checksums.crc32c";

// Writes the list of all files in the folder and below, or of `names` alone, replacing an older
// list. Throws IoError.
void write_checksums(const std::filesystem::path& folder);
void write_checksums(const std::filesystem::path& folder, std::span<const std::string> names);

// Reads the whole file if the list beside it names it, and throws FormatError if size or checksum
// differ. Unlisted files are not read. Throws IoError.
void expect_checksum(const std::filesystem::path& file);
// The same for a file that people edit: warns instead of throwing FormatError.
void warn_of_change(const std::filesystem::path& file);
// expect_checksum() for each file in the folder's list; all of them must exist.
void expect_checksums(const std::filesystem::path& folder);

}  // namespace megatron
