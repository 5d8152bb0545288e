#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "megatron/training/live_run.h"
#include "megatron/training/metrics_file.h"
#include "megatron/training/tracker.h"

namespace megatron {

// A run of MLflow, live. Rows that the server does not get are kept in `unsent`, in the form of
// --metrics-jsonl; without such rows there is no file.
class MlflowRun final : public Tracker {
 public:
  MlflowRun(std::unique_ptr<RunService> service, std::filesystem::path unsent,
            const LiveRun::Pace& pace);
  // Sends the rest and the end; the run has failed if an exception is on its way.
  ~MlflowRun() override;

  void write(int64_t iteration, const NamedValues& values) override;

 private:
  void keep(const RunRow& row);

  std::filesystem::path unsent_;
  std::unique_ptr<MetricsFile> file_;  // of unsent rows, from the first one on
  LiveRun live_;
};

}  // namespace megatron
