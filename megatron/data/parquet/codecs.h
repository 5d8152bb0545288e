#pragma once

#include <string>
#include <string_view>

namespace megatron {

// Unpacks a whole page. Returns whether it has exactly unpacked.size() bytes.
bool unpack_snappy(std::string& unpacked, std::string_view packed);  // needs MG_SNAPPY
bool unpack_zstd(std::string& unpacked, std::string_view packed);    // needs MG_ZSTD

}  // namespace megatron
