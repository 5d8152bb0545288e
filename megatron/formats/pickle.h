#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "megatron/formats/python_value.h"

// Python's pickles (protocols 2 to 5) as plain data.
namespace megatron {

struct PickleOptions {
  // Classes and functions that no checkpoint needs: keep them as inert objects, to look at them, or
  // refuse the file.
  bool keep_unexpected_globals = false;
};

struct Unpickled {
  PyValue value;
  size_t bytes = 0;  // that the pickle took
};

// Reads the pickle that begins at bytes[0]; its nodes go into `document`. Nothing is executed: what
// a known class or function would make is made here (torch_globals.h), any other becomes an inert
// object. Throws FormatError with the offset for anything malformed, for globals that no checkpoint
// needs, for values that contain themselves, nest deeper than 128 levels, or would be far larger
// than the pickle if shared parts were written out. Memory stays below a hundred bytes a byte.
Unpickled unpickle(std::span<const std::byte> bytes, PyDocument& document,
                   const PickleOptions& options = {});

}  // namespace megatron
