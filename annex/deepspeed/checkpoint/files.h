#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megatron/formats/torch_file.h"
#include "megatron/interchange/parts.h"

// The files of the ranks that saved a checkpoint with DeepSpeed:
//
//   layer_LL-model_TT-model_states.pt              weights of a pipeline, by layer and tensor rank
//   mp_rank_MM_model_states.pt                     the rest of a model-parallel rank; its weights,
//                                                  if there is no pipeline
//   zero_pp_rank_D_mp_rank_MM_model_states.pt      the same in stage 3 of ZeRO, without weights
//   [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt   the part of data-parallel rank D
//
// A model-parallel rank is pipeline stage * tensor ranks + tensor rank.
namespace megatron {

// A model-parallel rank.
struct DeepSpeedRank {
  std::shared_ptr<TorchFile> model;
  std::vector<std::shared_ptr<TorchFile>> optimizer;  // by data-parallel rank; may be empty
};

// The files of pipeline layers, by layer, then tensor rank.
using DeepSpeedLayers = std::map<int, std::vector<std::shared_ptr<TorchFile>>>;

// The first rank's file of model states; empty if there is none.
std::filesystem::path first_model_states(const std::filesystem::path& directory);

// The ranks, by number. Without optimizer files, ranks of a pipeline may be fewer than saved. For
// the weights alone, opens optimizer files only in stage 3 of ZeRO, where they contain the weights.
// Throws FormatError, which names a missing or surplus file; Unsupported for experts.
std::vector<DeepSpeedRank> open_deepspeed_ranks(const std::filesystem::path& directory,
                                                Parts parts = Parts::kAll);

// Throws FormatError unless all layers have files of the same number of ranks.
DeepSpeedLayers open_deepspeed_layers(const std::filesystem::path& directory);

}  // namespace megatron
