#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "megatron/core/append_file.h"
#include "megatron/core/arg_map.h"
#include "megatron/training/live_run.h"
#include "megatron/training/tracker.h"

namespace megatron {

namespace wandb {
class Record;
}

// A run of Weights & Biases, which its client `wandb sync FOLDER` uploads later:
//
//   <directory>/wandb/offline-run-<time>-<id>/run-<id>.wandb
//
// The file is a log of records in blocks, as LevelDB's (docs/formats/wandb.md). The numbers of one
// iteration are one row: a row is written when the next iteration begins. A run that has gone live
// is also sent while it trains; if all of it was sent, run-<id>.wandb.synced says so.
class WandbRun final : public Tracker {
 public:
  struct Description {
    std::string project;
    std::string name;
    std::string id = {};  // empty: a random one
    ArgMap settings = {};
  };

  // Throws IoError if the file cannot be opened.
  WandbRun(const std::filesystem::path& directory, const Description& description);
  // Writes the last row, the summary and the end of the run, which has failed if an exception is on
  // its way.
  ~WandbRun() override;

  // Sends the rows from now on to a service, too.
  void go_live(std::unique_ptr<RunService> service, const LiveRun::Pace& pace);

  void write(int64_t iteration, const NamedValues& values) override;

  const std::filesystem::path& path() const { return file_.path(); }
  const std::string& id() const { return id_; }

 private:
  double seconds() const;  // since the start
  void write_row();
  void append(wandb::Record& record);

  std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  std::string id_;
  AppendFile file_;
  int64_t num_records_ = 0;
  std::optional<int64_t> iteration_;  // of the row that is not written yet
  NamedValues row_;
  std::map<std::string, double> summary_;  // the last value of each number
  std::unique_ptr<LiveRun> live_;
};

}  // namespace megatron
