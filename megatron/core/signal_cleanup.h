#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace megatron {

// From here on, SIGTERM, SIGINT and SIGHUP remove the files that FileWriters have not committed,
// and SIGBUS names the mapped file that became shorter; then each ends the process as it always
// does. A signal that is handled or ignored already stays so. Call once, before there are threads.
void clean_up_on_signals();

// The files and mappings that the handlers know. Thread safe; when the table is full, further ones
// are not recorded, which costs the clean-up and nothing else.
void remember_unfinished(const std::filesystem::path& path);
void forget_unfinished(const std::filesystem::path& path);
void remember_mapping(std::span<const std::byte> bytes, const std::filesystem::path& path);
void forget_mapping(const std::byte* begin);

}  // namespace megatron
