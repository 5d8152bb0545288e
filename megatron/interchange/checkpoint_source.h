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

// A checkpoint of any format, or a Hugging Face model, which --load names; or nothing yet. Its
// files are opened and parsed once, when they are first asked for; copies share them. Elements are
// read on demand. Not for several threads at once.
class CheckpointSource {
 public:
  CheckpointSource() = default;
  // The directory of one checkpoint, or its only file; `archive`, if any, holds it. A Hugging Face
  // model is opened at once, so that a config.json that does not fit the weights is refused before
  // anybody takes memory for it.
  CheckpointSource(std::filesystem::path directory, CheckpointFormat format,
                   std::shared_ptr<const UnpackedArchive> archive = nullptr,
                   Parts parts = Parts::kAll);

  bool exists() const { return opened_ != nullptr; }
  // REQUIRES, here and below: exists()
  const std::filesystem::path& directory() const;
  CheckpointFormat format() const;
  ModelKind kind() const;
  // What config.json says; null for other formats.
  const HfModel* hf() const;

  // The settings of the run that saved it, or those of a run of this program with the model that
  // config.json describes. Empty where files are too old to have any.
  const ArgMap& args() const;
  // All of it. `fallback` stands in for settings where there are none.
  const CheckpointContents& contents(const ArgMap& fallback = {}) const;

  // The weights with the adapters of a folder of PEFT (hf/peft_folder.h).
  CheckpointSource with_adapters(const std::filesystem::path& folder) const;

 private:
  struct Opened;
  void open_megatron() const;
  std::shared_ptr<Opened> opened_;
};

// What `load` names: the directory of --save or of one checkpoint (0: the latest), a Hugging Face
// model, adapters of PEFT, which name their model, a file that a rank of Megatron-LM saved or its
// folder, or a zip archive of one of these, which is unpacked for as long as the source lives.
// Throws ConfigError when there is none of them and `must_exist`, or it is of another format than
// `load_format`; IoError, FormatError.
CheckpointSource find_source(const std::filesystem::path& load, int64_t ckpt_step, bool must_exist,
                             LoadFormat load_format = LoadFormat::kAuto, Parts parts = Parts::kAll);

}  // namespace megatron
