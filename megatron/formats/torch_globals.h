#pragma once

#include <string>
#include <string_view>

#include "megatron/formats/python_value.h"

// What the classes and functions that torch files name mean here. A pickle cannot make anything
// happen that is not in this file.
namespace megatron {

// The name after the renames between versions of Python: "__builtin__ set" -> "builtins.set".
std::string normalized_global(std::string_view module, std::string_view name);

// Does a checkpoint have business with it: is it known, or from a library that saves checkpoints?
bool is_expected_global(std::string_view name);

// The value that a global is: a dtype, or the class or function itself.
PyValue global_value(PyDocument& document, std::string name);

// callable(*arguments), as far as it makes plain data; an inert object otherwise. Throws
// FormatError when a known callable has arguments that it cannot have.
PyValue called(PyDocument& document, PyValue callable, PyValue arguments);

// The storage of ('storage', class, key, location, numel[, view]); for ('module', class, ...) the
// class. Throws FormatError for anything else.
PyValue persistent(PyDocument& document, PyValue id);

}  // namespace megatron
