#include <zstd.h>

#include "megatron/data/parquet/codecs.h"

namespace megatron {

bool unpack_zstd(std::string& unpacked, std::string_view packed) {
  const size_t size =
      ZSTD_decompress(unpacked.data(), unpacked.size(), packed.data(), packed.size());
  return ZSTD_isError(size) == 0 && size == unpacked.size();
}

}  // namespace megatron
