#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "megatron/core/append_file.h"
#include "megatron/training/tracker.h"

namespace megatron {

// A folder with one CSV file for each number, as DeepSpeed's csv_monitor writes it: "lm_loss.csv"
// has the header "step,lm loss" and a row for each value.
class CsvFolder final : public Tracker {
 public:
  // Creates the folder. Throws IoError if it cannot be created or is not writable.
  explicit CsvFolder(std::filesystem::path folder);

  void write(int64_t iteration, const NamedValues& values) override;

 private:
  AppendFile* file_of(const std::string& name);

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<AppendFile>> files_;  // by name of the number; null: lost
};

}  // namespace megatron
