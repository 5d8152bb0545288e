#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "megatron/formats/torch_writer.h"
#include "megatron/interchange/megatron/rank_shard.h"

namespace megatron {

// A rank's torch file, written in two passes: the structure, then the elements of its tensors, one
// tensor in memory at a time.
class RankFile {
 public:
  // Keeps a reference to the shard.
  RankFile(const std::filesystem::path& file, const RankShard& shard)
      : shard_(shard), writer_(file) {}

  PickleWriter& pickle() { return writer_.pickle(); }
  void key(std::string_view name) { pickle().text(name); }
  // Declares the rank's shard of a tensor of a section as the next value.
  void tensor(const char* section, const RankParameter& parameter, DType dtype);
  void constant(Tensor value);
  // Writes the elements; the file appears.
  void commit();

 private:
  const RankShard& shard_;
  TorchWriter writer_;
  std::vector<std::function<void()>> elements_;  // of the declared tensors
};

// The settings of a rank as a namespace, with its sizes of the model and the layout.
void write_args(RankFile& file, const RankShard& shard);

// The random states of a rank: those of freshly seeded generators.
void write_random_states(RankFile& file, const RankShard& shard);

// The optimizer's dictionary of a rank's file, and the gradient scaler's.
void write_optimizer(RankFile& file, const RankShard& shard);

// The optimizer's entry in common.pt of the format torch_dist: all except tensors of parameters.
void write_common_optimizer(RankFile& file, const RankShard& shard);

// The distributed optimizer's file beside it: a flat buffer for each chunk and kind of state, with
// the parameters in reverse order (optim/flat_layout.h).
void write_flat_state(const std::filesystem::path& file, const RankShard& shard);

}  // namespace megatron
