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

// Saves while training continues: copies a rank's tensors to host memory, which a thread writes to
// files. When all ranks have written, the complete checkpoint becomes the latest. The buffer is as
// large as the rank's files and is reused by the next save. For a GPU it is page-locked, and the
// copies are queued on the tensors' streams. One save runs at a time. Files and errors are those of
// save.h.
//
// Every rank has one, and all ranks call its functions in the same order.
class AsyncSaver {
 public:
  AsyncSaver(std::filesystem::path directory, const SaveOptions& options, const comm::Group& world);
  // Waits for this rank's writing. Discards an unfinished save.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Starts a save. Later work of the tensors' streams may change them. REQUIRES: no save is under
  // way.
  void save(const CheckpointState& state);
  bool is_under_way() const { return writing_ != nullptr; }

  // Complete a save under way: the first if all ranks have written, the second after waiting for
  // them. Return the saved iteration if one was completed. Throw the error of this rank's writing.
  std::optional<int64_t> finish_if_written();
  std::optional<int64_t> finish();

 private:
  CheckpointContents staged(const CheckpointState& state);

  const std::filesystem::path directory_;
  const SaveOptions options_;
  const comm::Group world_;
  std::shared_ptr<PinnedBuffer> buffer_;
  Device device_;                // holds the tensors
  std::optional<Event> copied_;  // the last copy into the buffer
  std::unique_ptr<CheckpointWriting> writing_;
  std::exception_ptr error_;
  std::atomic<bool> is_written_{false};
  std::thread writer_;
};

}  // namespace megatron
