#include "megatron/training/mlflow_run.h"

#include <chrono>
#include <exception>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron {

MlflowRun::MlflowRun(std::unique_ptr<RunService> service, std::filesystem::path unsent,
                     const LiveRun::Pace& pace)
    : unsent_(std::move(unsent)),
      live_(
          std::move(service), [this](const RunRow& row) { keep(row); },
          "what is not sent is kept in " + unsent_.string(), pace) {}

MlflowRun::~MlflowRun() { live_.finish(std::uncaught_exceptions() > 0); }

void MlflowRun::write(int64_t iteration, const NamedValues& values) {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  live_.add({iteration, std::chrono::duration<double>(time).count(), values});
}

void MlflowRun::keep(const RunRow& row) {
  if (!file_) {
    try {
      file_ = std::make_unique<MetricsFile>(unsent_, "--mlflow-experiment");
    } catch (const IoError& error) {
      warn_once(error.what());
      return;
    }
  }
  NamedValues values = row.values;
  values.emplace_back("unix_seconds", row.unix_seconds);
  file_->write(row.iteration, values);
}

}  // namespace megatron
