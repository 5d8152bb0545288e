#pragma once

namespace megatron {

// Writes the checkpoints of a run. All ranks call its functions in the same order.
class RunSaver {
 public:
  virtual ~RunSaver() = default;

  // Saves the run in its current state. False: files are still being written; finish() completes
  // them.
  virtual bool save() = 0;
  // Completes a save under way when all ranks have written: waits for them, or returns false if
  // they have not. True: the checkpoint is now the latest.
  virtual bool finish(bool waits) = 0;
};

}  // namespace megatron
