#include "megatron/core/build_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace megatron {
namespace {

constexpr size_t padded(size_t bytes) { return (bytes + 3) / 4 * 4; }

// The build id among the notes of one segment.
std::string build_id_in(const std::byte* notes, size_t bytes) {
  ElfW(Nhdr) note;
  for (size_t at = 0; at + sizeof(note) <= bytes;) {
    std::memcpy(&note, notes + at, sizeof(note));
    const size_t content = at + sizeof(note) + padded(note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && content + note.n_descsz <= bytes) {
      std::string text;
      for (size_t i = 0; i < note.n_descsz; ++i) {
        text += fmt::format("{:02x}", std::to_integer<int>(notes[content + i]));
      }
      return text;
    }
    at = content + padded(note.n_descsz);
  }
  return "";
}

}  // namespace

std::string build_id() {
  std::string found;
  const auto look = [](dl_phdr_info* object, size_t, void* result) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = object->dlpi_phdr[i];
      if (segment.p_type != PT_NOTE) continue;
      const std::string id = build_id_in(
          reinterpret_cast<const std::byte*>(object->dlpi_addr + segment.p_vaddr), segment.p_memsz);
      if (!id.empty()) *static_cast<std::string*>(result) = id;
    }
    return 1;  // the first object is the program; libraries do not count
  };
  ::dl_iterate_phdr(look, &found);
  return found;
}

}  // namespace megatron
