#include "megatron/device/stream.h"

#include <chrono>

#include "megatron/core/error.h"
#include "megatron/device/cuda.h"

namespace megatron {

int num_cuda_devices() { return cuda::num_devices(); }

void use_device(Device device) {
  if (!device.is_cpu() && !device.is_dry) cuda::use_device(device.index);
}

void synchronize(Stream stream) {
  if (stream.has_queue()) cuda::synchronize(stream.native);
}

OwnedStream::OwnedStream(Device device, StreamOptions options) : stream_{device} {
  if (device.is_cpu()) return;
  stream_.options = options;
  if (device.is_dry) return;
  cuda::properties(device.index);
  stream_.native = cuda::create_stream(device.index);
}

OwnedStream::~OwnedStream() {
  if (stream_.has_queue()) cuda::destroy_stream(stream_.native);
}

struct Event::Impl {
  explicit Impl(Device on)
      : device(on), native(on.is_cpu() || on.is_dry ? nullptr : cuda::create_event(on.index)) {}
  ~Impl() {
    if (native != nullptr) cuda::destroy_event(native);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Device device;
  void* native;                                // null on the CPU, and on a dry device
  std::chrono::steady_clock::time_point time;  // without a native event
};

Event::Event(Device device) : impl_(std::make_unique<Impl>(device)) {}
Event::~Event() = default;
Event::Event(Event&& other) noexcept = default;
Event& Event::operator=(Event&& other) noexcept = default;

void Event::record(Stream stream) {
  invariant(stream.device == impl_->device, "an event is recorded on its own device");
  if (impl_->native == nullptr) {
    impl_->time = std::chrono::steady_clock::now();
  } else {
    cuda::record(impl_->native, stream.native);
  }
}

void Event::hold_back(Stream stream) const {
  if (impl_->native == nullptr) return;
  if (stream.is_cpu()) {
    cuda::synchronize_event(impl_->native);
  } else {
    cuda::wait(stream.native, impl_->native);
  }
}

bool Event::is_done() const { return impl_->native == nullptr || cuda::is_done(impl_->native); }

void Event::synchronize() const {
  if (impl_->native != nullptr) cuda::synchronize_event(impl_->native);
}

double Event::ms_since(const Event& begin) const {
  invariant(begin.impl_->device == impl_->device, "times are measured between a device's events");
  if (impl_->native != nullptr) return cuda::elapsed_ms(begin.impl_->native, impl_->native);
  return std::chrono::duration<double, std::milli>(impl_->time - begin.impl_->time).count();
}

}  // namespace megatron
