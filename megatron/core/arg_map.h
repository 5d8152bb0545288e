#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "megatron/core/dtype.h"

namespace megatron {

// The value of one setting, in the types of Megatron-LM's argument parser. monostate is Python's
// None.
using ArgValue = std::variant<std::monostate, bool, int64_t, double, std::string, DType,
                              std::vector<int64_t>, std::vector<std::string>>;

// Every setting of a run by name: "hidden_size" -> 32. The argument dump prints it and checkpoints
// store it.
using ArgMap = std::map<std::string, ArgValue>;

// The value as Python's str() prints it: None, True, 1e-05, torch.float32, ['a', 'b'].
std::string text_of(const ArgValue& value);

}  // namespace megatron
