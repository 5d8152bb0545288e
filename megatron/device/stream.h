#pragma once

#include <cstdint>
#include <memory>

#include "megatron/device/device.h"

namespace megatron {

// GPUs that this process sees; 0 in a build without CUDA.
int num_cuda_devices();

// Sets the device of this thread's later launches. A rank's thread calls it once, before any work,
// and must not use streams of other devices. Does nothing on the CPU.
void use_device(Device device);

// Waits for everything queued so far. Does nothing on the CPU.
void synchronize(Stream stream);

// Owns a queue of a device. On the CPU it only names the device and ignores the options.
class OwnedStream {
 public:
  // Throws DeviceError if the device does not exist or this binary has no code for it.
  explicit OwnedStream(Device device, StreamOptions options = {});
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  Stream get() const { return stream_; }

 private:
  Stream stream_;
};

// A point in a stream's work. The host or another stream of any device can wait for it, and the
// time between two events can be measured. On the CPU work is done when it is recorded.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  // Moves the event to the end of the stream's current work.
  void record(Stream stream);
  // Later work of `stream` begins after the event. An event that was never recorded delays nothing.
  void hold_back(Stream stream) const;
  bool is_done() const;
  void synchronize() const;
  // REQUIRES: both were recorded and are done.
  double ms_since(const Event& begin) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron
