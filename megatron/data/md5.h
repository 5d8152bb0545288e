#pragma once

#include <string>
#include <string_view>

namespace megatron {

// The MD5 digest of a text in lower-case hexadecimal (RFC 1321), for Megatron's names of cache
// files. Not for security.
std::string md5_hex(std::string_view text);

}  // namespace megatron
