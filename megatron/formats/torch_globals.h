#pragma once

#include <string>
#include <string_view>

#include "megatron/formats/python_value.h"

// The classes and functions that torch files may name. A pickle can execute nothing but these.
namespace megatron {

// The name after the renames between versions of Python: "__builtin__ set" -> "builtins.set".
std::string normalized_global(std::string_view module, std::string_view name);

// True for globals that a checkpoint may contain: known ones, and those of libraries that save
// checkpoints.
bool is_expected_global(std::string_view name);

// The value of a global: a dtype, or the class or function itself.
PyValue global_value(PyDocument& document, std::string name);

// callable(*arguments) for callables that make plain data; otherwise an inert object. Throws
// FormatError for invalid arguments of a known callable.
PyValue called(PyDocument& document, PyValue callable, PyValue arguments);

// The storage of ('storage', class, key, location, numel[, view]); for ('module', class, ...) the
// class. Throws FormatError for anything else.
PyValue persistent(PyDocument& document, PyValue id);

}  // namespace megatron
