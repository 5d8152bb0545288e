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
};

struct Parameter {
  std::string name;  // within its module: "weight"
  Variable variable;
  Init init;
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
  // A leaf with undefined elements; initialize() or a checkpoint gives them.
  Variable add_parameter(const std::string& name, const Shape& shape, Init init,
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
};
std::vector<NamedParameter> named_parameters(const Module& module);
// Elements of all parameters.
int64_t num_parameters(const Module& module);

// Gives every parameter its first value. Element (row, column) depends on the seed, the parameter's
// name and its place in the whole tensor alone: the same for every device, dtype (up to rounding)
// and layout of ranks.
void initialize(const Module& module, uint64_t seed);

}  // namespace megatron
