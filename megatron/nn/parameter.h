#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "megatron/core/shape.h"
#include "megatron/nn/mesh_axis.h"

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

// The division of an axis of a tensor among the ranks along an axis of the mesh. The axis is cut
// into `parts` equal pieces (two for a gate stacked on what it multiplies), and each piece into
// `count` equal shares. Rank `index` has its share of every piece, one after the other.
struct AxisSharding {
  int axis = 0;
  int64_t index = 0;
  int64_t count = 1;
  int64_t parts = 1;
  MeshAxis along = MeshAxis::kTensor;

  bool operator==(const AxisSharding&) const = default;
};

// A rank's part of a whole tensor: how its axes are divided, each at most once.
struct Sharding {
  std::vector<AxisSharding> axes;  // none: every rank has the whole

  Sharding() = default;
  Sharding(std::initializer_list<AxisSharding> divided) : axes(divided) {}
  bool operator==(const Sharding&) const = default;

  // True if the tensor is sharded, also over a single rank.
  bool is_divided() const { return !axes.empty(); }
  // True if this rank has the whole tensor.
  bool is_whole() const;
  // The last divided axis of the tensor; 0 if there is none.
  int last_axis() const;

  // The same division, for rank `rank` of `ranks` along an axis of the mesh.
  Sharding on_rank(int64_t rank, int64_t ranks, MeshAxis along = MeshAxis::kTensor) const;
  // The shape of the whole tensor if this rank's part has shape `local`.
  Shape whole(const Shape& local) const;
  // The shape of this rank's part. Throws ShapeError if the tensor does not divide.
  Shape local(const Shape& whole) const;

  // A rectangle of this rank's part that is one of the whole tensor, too.
  struct Block {
    std::vector<int64_t> local;  // its first element in this rank's part, an index per axis
    std::vector<int64_t> whole;  // and in the whole tensor
    Shape shape;
  };
  // The blocks of a part of shape `local`, in row-major order.
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
  // Gradients are summed over the ranks along these axes: kDenseDataAxes, or kExpertDataAxes for an
  // expert, and those whose gradients are partial sums (see Placement).
  MeshAxes gradient_axes = kDenseDataAxes;
  bool is_embedding_or_output = false;
  bool is_adapter = false;  // LoRA: only adapters are trained; all others are constants
  // Sizes of a matrix's groups of rows: queries, keys and values. Empty: one part.
  std::vector<int64_t> row_parts = {};

  // The axes of ranks that work on the same samples and all have this rank's part.
  MeshAxes shared_axes() const;
  // The axes of all ranks that have it.
  MeshAxes copy_axes() const { return shared_axes().with(gradient_axes.in(kDataAxes)); }
};

}  // namespace megatron
