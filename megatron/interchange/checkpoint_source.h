#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "megatron/checkpoint/config.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/core/arg_map.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/parts.h"

namespace megatron {

class UnpackedArchive;

// The checkpoint of any format, or Hugging Face model, named by --load; may be absent. Its files
// are opened and parsed once, on first use; copies share them. Elements are read on demand. Not
// thread safe.
class CheckpointSource {
 public:
  CheckpointSource() = default;
  // The directory of one checkpoint, or its only file; `archive`, if any, contains it. Opens a
  // Hugging Face model immediately, so that a config.json that contradicts the weights is rejected
  // before memory is allocated.
  CheckpointSource(std::filesystem::path directory, CheckpointFormat format,
                   std::shared_ptr<const UnpackedArchive> archive = nullptr,
                   Parts parts = Parts::kAll);

  bool exists() const { return opened_ != nullptr; }
  // REQUIRES, here and below: exists()
  const std::filesystem::path& directory() const;
  CheckpointFormat format() const;
  ModelKind kind() const;
  // The model of config.json; null for other formats.
  const HfModel* hf() const;

  // The settings of the run that saved it, or, for config.json, the settings of a run with that
  // model. Empty for old files without settings.
  const ArgMap& args() const;
  // The whole contents. `fallback` replaces missing settings.
  const CheckpointContents& contents(const ArgMap& fallback = {}) const;

  // The weights, with the adapters of a PEFT folder (hf/peft_folder.h).
  CheckpointSource with_adapters(const std::filesystem::path& folder) const;

 private:
  struct Opened;
  void open_megatron() const;
  std::shared_ptr<Opened> opened_;
};

// Opens `load`: the directory of --save or of one checkpoint (0: the latest), a Hugging Face model,
// PEFT adapters, which name their base model, a file that a rank of Megatron-LM saved or its
// folder, or a zip archive of one of these, unpacked during the lifetime of the source. Throws
// ConfigError if nothing is found and `must_exist`, or if the format is not `load_format`; IoError,
// FormatError.
CheckpointSource find_source(const std::filesystem::path& load, int64_t ckpt_step, bool must_exist,
                             LoadFormat load_format = LoadFormat::kAuto, Parts parts = Parts::kAll);

}  // namespace megatron
