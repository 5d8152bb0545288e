#pragma once

#include <string>
#include <string_view>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/python_value.h"

// What checkpoints hold, for people and as JSON. Texts end without a line's end.
namespace megatron {

// A line for each tensor: its name, dtype, shape and number of pieces, by section.
std::string contents_text(const CheckpointContents& contents);
// {"format", "model", "directory", "iteration", ..., "sections": {name: {tensor: {"dtype", "shape",
// "pieces": [{"offset", "shape"}]}}}, "scalars", "args"}
std::string contents_json(const CheckpointContents& contents, std::string_view format);

// The object of a torch file as a tree: keys, and what tensors and objects are. Long lists of
// numbers are cut.
std::string value_text(PyValue value);
std::string value_json(PyValue value);

}  // namespace megatron
