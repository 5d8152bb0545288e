#include "megatron/nn/module.h"

#include <cmath>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/philox.h"
#include "megatron/device/random.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/random.h"

namespace megatron {
namespace {

void fill(Tensor tensor, const Init& init, uint64_t key) {
  switch (init.kind) {
    case Init::Kind::kZeros:
      return kernels::fill(tensor.view(), 0, tensor.stream());
    case Init::Kind::kOnes:
      return kernels::fill(tensor.view(), 1, tensor.stream());
    case Init::Kind::kNormal:
      return kernels::fill_normal(tensor.rows(), key, static_cast<float>(init.std),
                                  tensor.stream());
    case Init::Kind::kXavierUniform: {
      const TensorView rows = tensor.rows();
      const auto fans = static_cast<double>(rows.size(0) + rows.size(1));
      return kernels::fill_uniform(rows, key, static_cast<float>(std::sqrt(6.0 / fans)),
                                   tensor.stream());
    }
  }
}

}  // namespace

void Module::visit(const std::function<void(const std::string& name, const Parameter&)>& f) const {
  visit("", f);
}

void Module::visit(const std::string& prefix,
                   const std::function<void(const std::string& name, const Parameter&)>& f) const {
  for (const Parameter& parameter : parameters_) f(prefix + parameter.name, parameter);
  for (const auto& [name, child] : children_) child->visit(prefix + name + ".", f);
}

Variable Module::add_parameter(const std::string& name, const Shape& shape, Init init,
                               const Placement& placement) {
  const MemoryScope scope(MemoryCategory::kParameters);
  Variable variable = Variable::leaf(Tensor(shape, placement.dtype, placement.stream));
  parameters_.push_back({name, variable, init});
  return variable;
}

void Module::add_child(const std::string& name, const Module& child) {
  children_.emplace_back(name, &child);
}

std::vector<NamedParameter> named_parameters(const Module& module) {
  std::vector<NamedParameter> all;
  module.visit([&all](const std::string& name, const Parameter& parameter) {
    all.push_back({name, parameter.variable});
  });
  return all;
}

int64_t num_parameters(const Module& module) {
  int64_t sum = 0;
  for (const NamedParameter& parameter : named_parameters(module)) {
    sum += parameter.variable.data().numel();
  }
  return sum;
}

void initialize(const Module& module, uint64_t seed) {
  module.visit([seed](const std::string& name, const Parameter& parameter) {
    fill(parameter.variable.data(), parameter.init, mixed_key(seed, hash_of(name)));
  });
}

}  // namespace megatron
