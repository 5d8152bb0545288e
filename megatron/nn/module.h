#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/autograd/variable.h"

namespace megatron {

// How a parameter begins.
struct Init {
  enum class Kind { kZeros, kOnes, kNormal, kXavierUniform };
  Kind kind = Kind::kZeros;
  double std = 0;  // of kNormal; its mean is 0

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::kOnes, 0}; }
  static Init normal(double std) { return {Kind::kNormal, std}; }
  // Uniform in +-sqrt(6 / (rows + cols)) (Glorot and Bengio 2010).
  static Init xavier_uniform() { return {Kind::kXavierUniform, 0}; }
};

// Where and in which dtype a module makes its parameters.
struct Placement {
  DType dtype = DType::kFloat32;
  Stream stream;
  // This rank's activations are a slice of the sequence, so that its gradients of parameters that
  // every tensor-parallel rank has are partial sums.
  bool sequence_parallel = false;
};

// Which part of a whole tensor a rank has. The axis of the whole is cut into `parts` equal pieces
// (two for a gate stacked on what it gates), and each piece evenly among `count` ranks; rank
// `index` has its share of every piece, one after the other.
struct Sharding {
  int axis = 0;
  int64_t index = 0;
  int64_t count = 1;  // 1: the whole
  int64_t parts = 1;

  bool is_whole() const { return count == 1; }
  // Of the tensor of which a rank has `local`.
  Shape whole(const Shape& local) const;

  // A run of the axis that is contiguous both here and in the whole.
  struct Block {
    int64_t local_begin = 0;
    int64_t whole_begin = 0;
    int64_t size = 0;
  };
  std::vector<Block> blocks(const Shape& local) const;
};

// What other parts of the system need to know about a parameter.
struct ParameterInfo {
  Init init;
  Sharding sharding = {};
  // A copy of a parameter of the same name on another rank (tied embeddings in the last pipeline
  // stage): counted, decayed and saved there.
  bool is_copy = false;
  bool sequence_parallel = false;  // of its Placement
};

struct Parameter {
  std::string name;  // within its module: "weight"
  Variable variable;
  ParameterInfo info;
};

// A part of a model: parameters and children, both named, in the order of registration, which is
// the order of everything that walks over a model. A module is built once and never copied; its
// forward functions are const.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Own parameters first, then each child's; `name` is the dotted path: "mlp.linear_fc1.weight".
  void visit(const std::function<void(const std::string& name, const Parameter&)>& f) const;

 protected:
  // A leaf with undefined elements; initialize() or a checkpoint gives them. `shape` is this
  // rank's.
  Variable add_parameter(const std::string& name, const Shape& shape, ParameterInfo info,
                         const Placement& placement);
  // The child must live as long as this module: a member.
  void add_child(const std::string& name, const Module& child);

 private:
  void visit(const std::string& prefix,
             const std::function<void(const std::string& name, const Parameter&)>& f) const;

  std::vector<Parameter> parameters_;
  std::vector<std::pair<std::string, const Module*>> children_;
};

struct NamedParameter {
  std::string name;
  Variable variable;
  ParameterInfo info;
};
std::vector<NamedParameter> named_parameters(const Module& module);
// Elements of all parameters on this rank.
int64_t num_parameters(const Module& module);

// Gives every parameter its first value. Element (row, column) depends on the seed, the parameter's
// name and its place in the whole tensor alone: the same for every device, dtype (up to rounding)
// and layout of ranks.
void initialize(const Module& module, uint64_t seed);

}  // namespace megatron
