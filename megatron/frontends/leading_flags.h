#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "megatron/settings/flag_table.h"

namespace megatron::frontends {

// The position of the first argument that is neither a flag of the table nor its value: where a
// launcher's own arguments end and the script begins. The number of arguments if there is none.
size_t end_of_leading_flags(const FlagTable& flags, std::span<const std::string> words);

}  // namespace megatron::frontends
