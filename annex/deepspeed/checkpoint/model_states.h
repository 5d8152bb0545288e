#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megatron/formats/torch_file.h"

// The parameters listed in DeepSpeed's files of model states.
namespace megatron {

// The parameters of the module, in the order of registration: without buffers, and without the
// second names of tied parameters. In stage 3 of ZeRO the tensors are empty.
std::vector<std::pair<std::string, const PyTensor*>> module_parameters(const TorchFile& file);

// The parameters of each optimizer group, in order; empty if the file does not list them. Throws
// FormatError.
using NamedShapes = std::vector<std::pair<std::string, Shape>>;
std::vector<NamedShapes> parameter_shapes(const TorchFile& file);

}  // namespace megatron
