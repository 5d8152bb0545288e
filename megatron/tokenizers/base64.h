#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace megatron {

// Decodes base64 (RFC 4648, sec. 4); nothing if the text is not valid base64.
std::optional<std::string> bytes_from_base64(std::string_view text);

}  // namespace megatron
