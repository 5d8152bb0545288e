#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/models/plan/planned_training.h"
#include "megatron/nn/parameter.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/parallel/pipeline/model_chunk.h"

// The parameters of a pipeline stage, and what a rank keeps of them and of their gradients.
namespace megatron {

// A parameter, and how many like it there are.
struct RepeatedSpec {
  ParameterSpec spec;
  int64_t count = 1;
  bool is_in_layer = false;
};

// The parameters of a chunk. Layers are alike: one is described and stands for all, so that a plan
// of a million layers is quick.
std::vector<RepeatedSpec> parameters_of(const TransformerConfig& config, const ModelChunk& chunk);

// The ranks that divide the optimizer's state, and more with ZeRO stages 2 and 3.
int64_t num_shards(const PlannedTraining& t);
bool divides_gradients(const PlannedTraining& t);
bool divides_parameters(const PlannedTraining& t);

// What a rank of a stage keeps in its flat buffer, in the order of registration: parameters that
// are trained, or the others.
std::vector<FlatItem> stage_parameters(const PlannedTraining& t, int64_t stage,
                                       bool are_trained = true);
// This rank's part of a parameter.
Shape local_shape(const PlannedTraining& t, const ParameterSpec& spec);
// The trained matrices of layers, which --optimizer muon updates, and the elements of this rank's
// parts of them.
std::vector<RepeatedSpec> trained_matrices(const PlannedTraining& t, int64_t stage);
int64_t num_matrix_elements(const PlannedTraining& t, int64_t stage);
FlatLayout stage_layout(const PlannedTraining& t, std::span<const FlatItem> items);

// Elements of the `count` largest buckets, but for bucket `except`.
int64_t largest_buckets(const FlatLayout& layout, size_t count, int64_t except = -1);

// Of divided gradients, what exists whole (optim/divided_gradients.h): a bucket that is filled, one
// that is summed, and a tied embedding, whose gradients come first and last.
int64_t whole_gradients(const PlannedTraining& t, const FlatLayout& layout);

// The elements of weights that a rank of the stage keeps in FP8, and only its share of them in the
// model's dtype (--fp8-param-gather).
int64_t num_gathered_in_fp8(const PlannedTraining& t, int64_t stage);

// What a stage's linear layers keep for FP8: their weights by rows and by columns, and scales.
// Layers that FP8 leaves out count, too.
int64_t fp8_bytes(const PlannedTraining& t, int64_t stage);

}  // namespace megatron
