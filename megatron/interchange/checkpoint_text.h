#pragma once

#include <string>
#include <string_view>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/python_value.h"

// Descriptions of checkpoint contents, as text and as JSON. Texts have no final line end.
namespace megatron {

// One line per tensor, by section: its name, dtype, shape and number of pieces.
std::string contents_text(const CheckpointContents& contents);
// {"format", "model", "directory", "iteration", ..., "sections": {name: {tensor: {"dtype", "shape",
// "pieces": [{"offset", "shape"}]}}}, "scalars", "args"}
std::string contents_json(const CheckpointContents& contents, std::string_view format);

// The object of a torch file as a tree of keys, with types and shapes. Truncates long lists of
// numbers.
std::string value_text(PyValue value);
std::string value_json(PyValue value);

}  // namespace megatron
