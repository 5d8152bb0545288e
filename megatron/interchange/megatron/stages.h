#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/checkpoint/contents.h"

namespace megatron {

struct MegatronLayout;

// Which tensors each model chunk of a pipeline holds in Megatron-LM's checkpoints.
//
// Stages follow each other: the first chunks of all pipeline ranks, then the second ones. Each has
// as many layers. The first has the embeddings, the last what follows the layers. The stages of a
// T5 hold its encoder or its decoder, each divided evenly; where the decoder begins, the embeddings
// are stored once more.
class MegatronStages {
 public:
  // REQUIRES: stage_problems() are empty.
  MegatronStages(const CheckpointContents& contents, const MegatronLayout& layout);

  // A model chunk of a pipeline rank.
  struct Place {
    int64_t pipeline = 0;
    int64_t chunk = 0;
  };
  bool is_last(Place place) const;
  bool has_embeddings(Place place) const;
  // Whether the tensor of that name of ours is there.
  bool holds(Place place, std::string_view name) const;
  // The number of its layer within the chunk: 2 for layer 10, where layer 8 is the first.
  int64_t local_layer(Place place, std::string_view name, int64_t layer) const;
  // The first pipeline rank of a T5's decoder; 0 if encoder and decoder share all ranks.
  int64_t split_rank() const { return split_rank_; }

 private:
  struct Layers;
  Layers layers_of(std::string_view stack, Place place) const;

  int64_t ranks_;
  int64_t chunks_;  // of a rank
  int64_t encoder_layers_;
  int64_t decoder_layers_;
  int64_t split_rank_ = 0;
};

// The number of layers of the longest stack, or of one: "encoder" or "decoder".
int64_t layers_in(const CheckpointContents& contents, std::string_view stack = {});

// What keeps the layers from being divided so, one sentence each.
std::vector<std::string> stage_problems(const CheckpointContents& contents,
                                        const MegatronLayout& layout);

}  // namespace megatron
