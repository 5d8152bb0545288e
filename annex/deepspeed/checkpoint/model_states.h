#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megatron/formats/torch_file.h"

// What DeepSpeed's files of model states say about the parameters.
namespace megatron {

// The parameters of the module, in the order of registration: without buffers, and without the
// second names of tied parameters. In stage 3 of ZeRO the tensors are empty.
std::vector<std::pair<std::string, const PyTensor*>> module_parameters(const TorchFile& file);

// The parameters of each group of the optimizer, in order; empty if the file does not say it.
// Throws FormatError.
using NamedShapes = std::vector<std::pair<std::string, Shape>>;
std::vector<NamedShapes> parameter_shapes(const TorchFile& file);

}  // namespace megatron
