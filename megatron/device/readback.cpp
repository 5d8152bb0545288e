#include "megatron/device/readback.h"

#include "megatron/core/error.h"

namespace megatron {

Readback::Readback(int64_t bytes, Device device) : buffer_(bytes, device), arrival_(device) {}

Readback::~Readback() {
  if (!is_under_way_) return;
  try {
    arrival_.synchronize();
  } catch (const Error&) {
    // The device has failed and writes no more.
  }
}

void Readback::start(const void* from, Stream stream) {
  invariant(!is_under_way_, "a readback is complete before the next one starts");
  copy_bytes(buffer_.data(), from, buffer_.bytes(), stream);
  arrival_.record(stream);
  is_under_way_ = true;
}

const std::byte* Readback::wait() {
  invariant(is_under_way_, "wait() follows start()");
  arrival_.synchronize();
  is_under_way_ = false;
  return buffer_.data();
}

}  // namespace megatron
