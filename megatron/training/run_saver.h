#pragma once

namespace megatron {

// Writes the checkpoints of a run. Every rank calls each function alike.
class RunSaver {
 public:
  virtual ~RunSaver() = default;

  // Saves the run as it is now. False: the files are being written, and finish() completes them.
  virtual bool save() = 0;
  // Completes a save that is under way once all ranks have written: waits for that, or returns
  // false if it is not so yet. True: the checkpoint is the latest now.
  virtual bool finish(bool waits) = 0;
};

}  // namespace megatron
