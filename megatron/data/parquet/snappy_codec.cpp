#include <snappy.h>

#include "megatron/data/parquet/codecs.h"

namespace megatron {

bool unpack_snappy(std::string& unpacked, std::string_view packed) {
  size_t size = 0;
  return snappy::GetUncompressedLength(packed.data(), packed.size(), &size) &&
         size == unpacked.size() &&
         snappy::RawUncompress(packed.data(), packed.size(), unpacked.data());
}

}  // namespace megatron
