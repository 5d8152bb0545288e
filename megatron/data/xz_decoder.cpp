#include "megatron/data/xz_decoder.h"

#include <lzma.h>

#include "megatron/core/error.h"

namespace megatron {

struct XzDecoder::Stream {
  lzma_stream lzma = LZMA_STREAM_INIT;
};

XzDecoder::XzDecoder() : stream_(std::make_unique<Stream>()) {
  if (::lzma_stream_decoder(&stream_->lzma, UINT64_MAX, LZMA_CONCATENATED) != LZMA_OK) {
    throw IoError("an xz file cannot be opened: out of memory");
  }
}

XzDecoder::~XzDecoder() { ::lzma_end(&stream_->lzma); }

XzDecoder::Result XzDecoder::run(std::span<const char>& packed, std::span<char>& unpacked,
                                 bool is_last) {
  lzma_stream& s = stream_->lzma;
  s.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  s.avail_in = packed.size();
  s.next_out = reinterpret_cast<uint8_t*>(unpacked.data());
  s.avail_out = unpacked.size();
  const lzma_ret result = ::lzma_code(&s, is_last ? LZMA_FINISH : LZMA_RUN);
  packed = packed.last(s.avail_in);
  unpacked = unpacked.last(s.avail_out);
  switch (result) {
    case LZMA_OK:
      return Result::kMore;
    case LZMA_STREAM_END:
      return Result::kEnd;
    case LZMA_BUF_ERROR:
      return Result::kTruncated;
    case LZMA_MEM_ERROR:
      return Result::kNoMemory;
    default:
      return Result::kDamaged;
  }
}

}  // namespace megatron
