#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "megatron/core/append_file.h"
#include "megatron/training/progress.h"

namespace megatron {

// --log-progress: <save>/progress.txt, one line for every start and every checkpoint of all jobs
// that trained a model, with tab-separated fields as in Megatron-LM.
class ProgressFile {
 public:
  // Adds the line of a start. Throws IoError if the file cannot be opened; later lines that cannot
  // be written are dropped.
  ProgressFile(std::filesystem::path path, int64_t world_size, const Progress& now);

  // Adds the line of a checkpoint: FLOP/s per device of this job, and since the first of the
  // consecutive jobs with the same number of devices.
  void saved_checkpoint(const Progress& now, int64_t consumed_tokens);

 private:
  using Clock = std::chrono::system_clock;

  void append(const std::string& fields);
  void find_first_job();

  AppendFile file_;
  int64_t world_size_;
  Clock::time_point job_started_;
  double job_flops_;                 // before this job
  Clock::time_point first_started_;  // of the first job of this world size
  double first_flops_;
};

}  // namespace megatron
