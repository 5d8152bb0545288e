#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace megatron {

// Installs handlers: SIGTERM, SIGINT and SIGHUP remove the files that FileWriters have not
// committed, and SIGBUS names the mapped file that became shorter; then each ends the process as
// usual. Ignores SIGXFSZ, so that a file beyond the limit (ulimit -f) fails with a message. Signals
// that are already handled or ignored stay so. Call once, before starting threads.
void clean_up_on_signals();

// Registers files and mappings for the handlers. Thread safe. A full table ignores further ones,
// which only costs their clean-up.
void remember_unfinished(const std::filesystem::path& path);
void forget_unfinished(const std::filesystem::path& path);
void remember_mapping(std::span<const std::byte> bytes, const std::filesystem::path& path);
void forget_mapping(const std::byte* begin);

}  // namespace megatron
