#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/checkpoint/contents.h"

namespace megatron {

struct MegatronLayout;

// The tensors of each model chunk of a pipeline in Megatron-LM's checkpoints.
//
// The order of chunks is: the first chunks of all pipeline ranks, then the second ones. All have
// the same number of layers. The first has the embeddings, the last the final norm and head. The
// stages of a T5 have its encoder or its decoder, each divided evenly; the first stage of the
// decoder has a copy of the embeddings.
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
  // True if the chunk has our tensor of that name.
  bool holds(Place place, std::string_view name) const;
  // The number of its layer within the chunk: 2 for layer 10 if the chunk's first layer is 8.
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

// The number of layers of the longest stack, or of one: "encoder" or "decoder". Those of further
// tokens do not count.
int64_t layers_in(const CheckpointContents& contents, std::string_view stack = {});

// Reasons why the layers cannot be divided so, one sentence each.
std::vector<std::string> stage_problems(const CheckpointContents& contents,
                                        const MegatronLayout& layout);

}  // namespace megatron
