#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace megatron {

// Unpacks the stream of an xz file; needs MG_LZMA. A file may hold several streams, as from
// `cat a.xz b.xz`.
class XzDecoder {
 public:
  XzDecoder();  // throws IoError if memory is exhausted
  ~XzDecoder();
  XzDecoder(XzDecoder&&) = delete;

  enum class Result { kMore, kEnd, kTruncated, kNoMemory, kDamaged };
  // Takes bytes from the front of `packed` and fills the front of `unpacked`; shortens both.
  // `is_last`: no packed bytes follow.
  Result run(std::span<const char>& packed, std::span<char>& unpacked, bool is_last);

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace megatron
