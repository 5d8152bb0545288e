#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace megatron {

// The bytes that base64 text stands for (RFC 4648, sec. 4); nothing if it is no base64.
std::optional<std::string> bytes_from_base64(std::string_view text);

}  // namespace megatron
