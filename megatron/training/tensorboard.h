#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "megatron/core/append_file.h"
#include "megatron/core/arg_map.h"

namespace megatron {

// Appends scalars and texts to a TensorBoard event file
// (<directory>/events.out.tfevents.<time>.<host>.<pid>). The file grows during the run and is
// always readable. The constructor throws IoError; later entries that cannot be written are dropped
// (AppendFile).
class TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& directory);

  void add_scalar(std::string_view tag, double value, int64_t step);
  // The settings of the run, for TensorBoard's HPARAMS page.
  void add_hyperparameters(const ArgMap& settings);
  void add_text(std::string_view tag, std::string_view text, int64_t step);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void append_record(const std::string& event);

  AppendFile file_;
};

}  // namespace megatron
