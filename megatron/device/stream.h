#pragma once

#include <cstdint>
#include <memory>

#include "megatron/device/device.h"

namespace megatron {

// GPUs that this process sees; 0 in a build without CUDA.
int num_cuda_devices();

// The device of this thread's launches from now on. A rank's thread calls it once, before any work;
// streams of other devices must not be used by that thread. On the CPU nothing.
void use_device(Device device);

// Waits until everything queued so far is done. On the CPU nothing.
void synchronize(Stream stream);

// Owns a queue of a device. On the CPU just its name, without the options.
class OwnedStream {
 public:
  // Throws DeviceError when the device is not there or is not one this binary has code for.
  explicit OwnedStream(Device device, StreamOptions options = {});
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  Stream get() const { return stream_; }

 private:
  Stream stream_;
};

// A point in a stream's work: to be waited for by the host or by another stream of any device, and
// to measure the time between two points. On the CPU work is done when it is recorded.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  // Moves the event to the end of what the stream holds now.
  void record(Stream stream);
  // Later work of `stream` begins after the event. An event never recorded holds nobody up.
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
