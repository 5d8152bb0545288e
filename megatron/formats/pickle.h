#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "megatron/formats/python_value.h"

// Python's pickles (protocols 2 to 5) as plain data.
namespace megatron {

struct PickleOptions {
  // Treatment of classes and functions that no checkpoint needs: keep them as inert objects for
  // inspection, or reject the file.
  bool keep_unexpected_globals = false;
};

struct Unpickled {
  PyValue value;
  size_t bytes = 0;  // size of the pickle
};

// Reads the pickle that begins at bytes[0]; its nodes go into `document`. Executes nothing: known
// classes and functions have equivalents here (torch_globals.h), all others become inert objects.
// Throws FormatError with the offset for malformed input, for globals that no checkpoint needs, and
// for values that contain themselves, nest deeper than 128 levels, or would be far larger than the
// pickle if shared parts were written out. Memory stays below 100 bytes per byte of the pickle.
Unpickled unpickle(std::span<const std::byte> bytes, PyDocument& document,
                   const PickleOptions& options = {});

}  // namespace megatron
