#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace megatron {

// Reads a file with a library that may crash, hang or take all memory if the file is damaged.
// Calls `read`, a function that returns a std::string, in a child process and returns its result.
// Throws FormatError with the file and the reason if
//
//   - `read` throws: an Error's message unchanged, another exception's message after the file,
//   - a signal ends the child,
//   - the child needs more than 1 GiB and 16 times the size of the file, or
//   - more seconds of a processor than 5 and one for each 20 MB of the file, or one minute and one
//     second for each 2 MB of the file by the clock.
//
// Throws IoError if the file cannot be read or no process can be started. `library` names the
// library in messages. The child is a fork of this process with one thread: `read` must not take a
// lock that another thread may hold, nor start threads, nor use a GPU. What it writes to standard
// streams is lost.
std::string read_in_child(const std::filesystem::path& path, std::string_view library,
                          std::string (*read)(void* argument), void* argument);

template <class Read>
std::string read_in_child(const std::filesystem::path& path, std::string_view library, Read read) {
  return read_in_child(
      path, library, [](void* argument) { return (*static_cast<Read*>(argument))(); }, &read);
}

}  // namespace megatron
