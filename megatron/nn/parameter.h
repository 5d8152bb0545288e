#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/core/dtype.h"
#include "megatron/core/shape.h"

// Describes a model's parameters without their elements. A module states these facts once; weight
// decay, gradient reduction, checkpoints, name tables and memory plans read them.
namespace megatron {

// The first value of a parameter.
struct Init {
  enum class Kind { kZeros, kOnes, kNormal, kXavierUniform };
  Kind kind = Kind::kZeros;
  double std = 0;  // for kNormal, whose mean is 0

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::kOnes, 0}; }
  static Init normal(double std) { return {Kind::kNormal, std}; }
  // Uniform in +-sqrt(6 / (rows + cols)) (Glorot and Bengio 2010).
  static Init xavier_uniform() { return {Kind::kXavierUniform, 0}; }
};

// A rank's part of a whole tensor. The axis is cut into `parts` equal pieces (two for a gate
// stacked on what it multiplies), and each piece into `count` equal shares. Rank `index` has its
// share of every piece, one after the other.
struct Sharding {
  static constexpr int kUndivided = -1;

  int axis = kUndivided;  // kUndivided: every rank has the whole
  int64_t index = 0;
  int64_t count = 1;
  int64_t parts = 1;

  // Would several ranks have different parts?
  bool is_divided() const { return axis != kUndivided; }
  // Does this rank have the whole?
  bool is_whole() const { return count == 1; }

  // The same division, for rank `rank` of `ranks`.
  Sharding on_rank(int64_t rank, int64_t ranks) const;
  // The shape of the whole tensor if this rank's part has shape `local`.
  Shape whole(const Shape& local) const;
  // The shape of this rank's part. Throws ShapeError if the tensor does not divide.
  Shape local(const Shape& whole) const;

  // A run of the axis (of the first axis if undivided) that is contiguous both in this rank's part
  // and in the whole.
  struct Block {
    int64_t local_begin = 0;
    int64_t whole_begin = 0;
    int64_t size = 0;
  };
  std::vector<Block> blocks(const Shape& local) const;
};

// The purpose of a module's tensor.
enum class ParameterRole {
  kMatrix,      // the weight of a linear layer
  kBias,        // added to the output of a linear layer
  kNorm,        // weight or bias of a norm
  kEmbedding,   // a table that tokens, positions or token types look up
  kOutputHead,  // the weight that makes logits
  kBuffer,      // not a parameter: saved and loaded, but without gradient (Module::add_buffer)
};

// Facts about a parameter for other parts of the system.
struct ParameterInfo {
  ParameterRole role;
  Init init = {};
  Sharding sharding = {};
  bool has_vocabulary_rows = false;  // a row for each token id; the last rows may be padding
  // Other pipeline stages have the same parameter under the same name (tied embeddings), and its
  // gradients are summed over these stages. One is the original; the others are copies, which are
  // neither counted nor saved.
  bool is_tied = false;
  bool is_copy = false;
  bool has_partial_gradients = false;  // see Placement
  bool is_embedding_or_output = false;
  bool is_adapter = false;  // trained while all parameters that are none are constants (LoRA)
  // A matrix whose rows are groups of so many rows each: queries, keys and values. Empty: one part.
  std::vector<int64_t> row_parts = {};
};

// A parameter of a model, without elements.
struct ParameterSpec {
  std::string name;  // the dotted path: "decoder.layers.0.mlp.linear_fc1.weight"
  Shape shape;       // of the whole tensor
  DType dtype = DType::kFloat32;
  ParameterInfo info;

  // The shape of this rank's part.
  Shape local_shape() const { return info.sharding.local(shape); }
};

}  // namespace megatron
