#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/core/tensor_spec.h"
#include "megatron/nn/parameter.h"

namespace megatron {

// The device and dtype of a module's parameters.
struct Placement {
  DType dtype = DType::kFloat32;
  Stream stream;
  // The gradients of parameters that every tensor-parallel rank has are partial sums: each rank's
  // activations are a slice of the sequence (sequence parallelism), or of the heads.
  bool has_partial_gradients = false;
  // The module belongs to the embedding or the output layer, whose learning rate may differ.
  bool is_embedding_or_output = false;
};

// A tensor of a module: a parameter, or a buffer (ParameterRole::kBuffer).
struct Parameter {
  std::string name;  // within its module, "weight", or its dotted path from a model
  Shape shape;       // of this rank's part
  DType dtype = DType::kFloat32;
  ParameterInfo info;
  Variable variable;  // undefined in a module that was built under DescribeOnly

  // Name, dtype and shape of the whole tensor, of which this rank has a part.
  TensorSpec whole() const { return {name, dtype, info.sharding.whole(shape)}; }
};

// While it lives, modules that this thread builds describe their parameters and buffers without
// allocating them, so that named_tensors() is cheap for a model of any size. Such a module has no
// forward.
class DescribeOnly {
 public:
  DescribeOnly();
  ~DescribeOnly();
  DescribeOnly(const DescribeOnly&) = delete;
  DescribeOnly& operator=(const DescribeOnly&) = delete;

 private:
  bool previous_;
};
// True if a DescribeOnly is alive on this thread.
bool only_describes();

// A part of a model: named parameters, buffers and children in the order of registration. Every
// walk over a model uses this order. A module is built once and never copied; its forward functions
// are const.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Calls f for every parameter and buffer: first its own, then those of each child. `name` is the
  // dotted path: "mlp.linear_fc1.weight".
  void visit(const std::function<void(const std::string& name, const Parameter&)>& f) const;
  // Calls f for this module, then for each child and its children.
  void visit_modules(const std::function<void(const Module&)>& f) const;

 protected:
  // A leaf of shape `shape` (of this rank's part) with undefined elements; initialize() or a
  // checkpoint fills it.
  Variable add_parameter(const std::string& name, const Shape& shape, ParameterInfo info,
                         const Placement& placement);
  // A tensor that training changes without a gradient: statistics, a history of scales. Every rank
  // has the whole tensor. Checkpoints contain it; the optimizer does not see it. The module writes
  // into the returned tensor.
  Tensor add_buffer(const std::string& name, const Shape& shape, DType dtype, Init init,
                    Stream stream);
  // The child must live as long as this module: make it a member.
  void add_child(const std::string& name, const Module& child);

 private:
  void visit(const std::string& prefix,
             const std::function<void(const std::string& name, const Parameter&)>& f) const;

  std::vector<Parameter> parameters_;
  std::vector<std::pair<std::string, const Module*>> children_;
};

// All parts of `module` that are of type M.
template <class M>
std::vector<const M*> modules_of(const Module& module) {
  std::vector<const M*> found;
  module.visit_modules([&found](const Module& part) {
    if (const auto* const one = dynamic_cast<const M*>(&part)) found.push_back(one);
  });
  return found;
}

// All parameters under their dotted paths, without buffers.
std::vector<Parameter> named_parameters(const Module& module);
// Parameters and buffers under their dotted paths: a model's content of a checkpoint. Also of a
// module that was built under DescribeOnly.
std::vector<Parameter> named_tensors(const Module& module);
// Elements of all parameters on this rank.
int64_t num_parameters(const Module& module);

// Fills every parameter and buffer with its first value. Element (row, column) depends only on the
// seed, the parameter's name and its place in the whole tensor: it is the same for every device,
// dtype (up to rounding) and layout of ranks.
void initialize(const Module& module, uint64_t seed);

}  // namespace megatron
