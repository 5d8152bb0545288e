#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/arg_map.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/transformer/config.h"

namespace megatron {

class DistCheckpoint;

// Reads a Megatron-LM checkpoint of a GPT or a BERT: the directory of one iteration with a folder
// for each rank, of any tensor-, pipeline- and virtual-pipeline-parallel size, of checkpoint
// versions 0 to 3, of the older models or Megatron Core, with the optimizer's state in the same
// files or in distrib_optim.pt; or the format torch_dist (dist_reader.h). Tensors have our names
// and are whole; the files are mapped and read on demand.
//
// Throws IoError; FormatError for files that do not fit each other or the model they describe;
// Unsupported for experts and for tensors that no such model of this program has.
class MegatronCheckpoint {
 public:
  // Opens and parses the files of all ranks.
  explicit MegatronCheckpoint(std::filesystem::path directory, Parts parts = Parts::kAll);

  ModelKind kind() const { return kind_; }
  // The stored settings, under the names of core_r0.5.0; empty if there are none.
  const ArgMap& args() const { return args_; }
  // `fallback` has the settings for old files without their own; it may omit sizes that tensors
  // show.
  CheckpointContents contents(const ArgMap& fallback = {}) const;

 private:
  std::filesystem::path directory_;
  Parts parts_;
  std::vector<RankFiles> ranks_;                // of the older format
  std::shared_ptr<const DistCheckpoint> dist_;  // of torch_dist
  ModelKind kind_;
  ArgMap args_;
};

// The contents of a checkpoint that has settings.
inline CheckpointContents open_megatron_checkpoint(const std::filesystem::path& directory) {
  return MegatronCheckpoint(directory).contents();
}

}  // namespace megatron
