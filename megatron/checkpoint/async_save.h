#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "megatron/checkpoint/save.h"
#include "megatron/checkpoint/state.h"
#include "megatron/comm/group.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"

namespace megatron {

// Saves while training goes on: a rank's tensors are copied into host memory, which a thread of its
// own writes; when all ranks have written, the checkpoint becomes the latest, as a whole. Takes as
// much host memory as the rank's files have bytes, kept for the next save; page-locked for a GPU,
// whose copies are queued on the tensors' streams. One save is under way at a time. What save.h
// says of files and errors holds here.
//
// Every rank makes one and calls each function alike.
class AsyncSaver {
 public:
  AsyncSaver(std::filesystem::path directory, const SaveOptions& options, const comm::Group& world);
  // Waits for this rank's writing. A save that is not finished is given up.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Begins a save; the tensors may change as soon as their streams' later work does so. REQUIRES:
  // none is under way.
  void save(const CheckpointState& state);
  bool is_under_way() const { return writing_ != nullptr; }

  // Completes a save under way if all ranks have written, or once they have. The iteration that is
  // the latest now, if one was completed. Throws what has kept this rank from writing.
  std::optional<int64_t> finish_if_written();
  std::optional<int64_t> finish();

 private:
  CheckpointContents staged(const CheckpointState& state);

  const std::filesystem::path directory_;
  const SaveOptions options_;
  const comm::Group world_;
  std::shared_ptr<PinnedBuffer> buffer_;
  Device device_;                // of the tensors
  std::optional<Event> copied_;  // the last copy into the buffer
  std::unique_ptr<CheckpointWriting> writing_;
  std::exception_ptr error_;
  std::atomic<bool> is_written_{false};
  std::thread writer_;
};

}  // namespace megatron
