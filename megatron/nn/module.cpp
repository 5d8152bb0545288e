#include "megatron/nn/module.h"

#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/philox.h"
#include "megatron/device/random.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/random.h"
#include "megatron/nn/deferred_memory.h"

namespace megatron {
namespace {

// Each rank is a thread that builds its own modules, and so has its own of these.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local bool describes = false;
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local bool defers_memory = false;

void fill(Tensor tensor, kernels::MatrixPlace first, const Shape& whole, const Init& init,
          uint64_t key) {
  switch (init.kind) {
    case Init::Kind::kZeros:
      return kernels::fill(tensor.view(), 0, tensor.stream());
    case Init::Kind::kOnes:
      return kernels::fill(tensor.view(), 1, tensor.stream());
    case Init::Kind::kNormal:
      return kernels::fill_normal(tensor.rows(), first, key, static_cast<float>(init.std),
                                  tensor.stream());
    case Init::Kind::kXavierUniform: {
      const int64_t rows = whole.rank() > 1 ? whole[-2] : 1;
      const auto fans = static_cast<double>(rows + whole[-1]);
      return kernels::fill_uniform(tensor.rows(), first, key,
                                   static_cast<float>(std::sqrt(6.0 / fans)), tensor.stream());
    }
  }
}

// Fills a block of a part, matrix by matrix: its last two axes are rows and columns, and the place
// of an element in a tensor of shape [all axes but the last, last] decides about its value.
void fill_block(const Tensor& part, const Sharding::Block& block, const Shape& whole,
                const Init& init, uint64_t key) {
  const int columns = whole.rank() - 1;
  const auto last = static_cast<size_t>(columns);
  if (columns == 0) {
    return fill(part.slice(block.local[0], block.shape[0]), {.column = block.whole[0]}, whole, init,
                key);
  }
  const Shape& local = part.shape();
  const int rows = columns - 1;
  invariant(block.shape[columns] == local[columns], "rows of a part lie together in the whole");
  const Tensor all_rows = part.reshape({local.numel() / local[columns], local[columns]});
  int64_t num_matrices = 1;
  for (int axis = 0; axis < rows; ++axis) num_matrices *= block.shape[axis];
  for (int64_t matrix = 0; matrix < num_matrices; ++matrix) {
    int64_t local_row = block.local[last - 1];
    int64_t whole_row = block.whole[last - 1];
    int64_t local_stride = local[rows];
    int64_t whole_stride = whole[rows];
    int64_t rest = matrix;
    for (int axis = rows - 1; axis >= 0; --axis) {
      const int64_t index = rest % block.shape[axis];
      rest /= block.shape[axis];
      local_row += (block.local[static_cast<size_t>(axis)] + index) * local_stride;
      whole_row += (block.whole[static_cast<size_t>(axis)] + index) * whole_stride;
      local_stride *= local[axis];
      whole_stride *= whole[axis];
    }
    fill(all_rows.slice(local_row, block.shape[rows]),
         {.row = whole_row, .column = block.whole[last]}, whole, init, key);
  }
}

}  // namespace

DescribeOnly::DescribeOnly() : previous_(std::exchange(describes, true)) {}
DescribeOnly::~DescribeOnly() { describes = previous_; }
bool only_describes() { return describes; }

DeferMemory::DeferMemory() : previous_(std::exchange(defers_memory, true)) {}
DeferMemory::~DeferMemory() { defers_memory = previous_; }

void Module::visit(const std::function<void(const std::string& name, const Parameter&)>& f) const {
  visit("", f);
}

void Module::visit(const std::string& prefix,
                   const std::function<void(const std::string& name, const Parameter&)>& f) const {
  for (const Parameter& parameter : parameters_) f(prefix + parameter.name, parameter);
  for (const auto& [name, child] : children_) child->visit(prefix + name + ".", f);
}

void Module::visit_modules(const std::function<void(const Module&)>& f) const {
  f(*this);
  for (const auto& [name, child] : children_) child->visit_modules(f);
}

Variable Module::add_parameter(const std::string& name, const Shape& shape, ParameterInfo info,
                               const Placement& placement) {
  if (placement.has_partial_gradients) {
    info.gradient_axes = info.gradient_axes.with(info.shared_axes().in(MeshAxis::kTensor));
  }
  info.is_embedding_or_output = placement.is_embedding_or_output;
  Parameter& parameter =
      parameters_.emplace_back(Parameter{name, shape, placement.dtype, info, {}});
  if (describes) return {};
  const MemoryScope scope(MemoryCategory::kParameters);
  Tensor data(shape, placement.dtype, placement.stream);
  if (defers_memory) data.drop_memory();
  parameter.variable = Variable::leaf(std::move(data));
  return parameter.variable;
}

Tensor Module::add_buffer(const std::string& name, const Shape& shape, DType dtype, Init init,
                          Stream stream) {
  const ParameterInfo info{.role = ParameterRole::kBuffer, .init = init};
  Parameter& buffer = parameters_.emplace_back(Parameter{name, shape, dtype, info, {}});
  if (describes) return {};
  const MemoryScope scope(MemoryCategory::kParameters);
  buffer.variable = Variable(Tensor(shape, dtype, stream));
  return buffer.variable.data();
}

void Module::add_child(const std::string& name, const Module& child) {
  children_.emplace_back(name, &child);
}

std::vector<Parameter> named_tensors(const Module& module) {
  std::vector<Parameter> all;
  module.visit([&all](const std::string& name, const Parameter& parameter) {
    all.push_back(parameter);
    all.back().name = name;
  });
  return all;
}

std::vector<Parameter> named_parameters(const Module& module) {
  std::vector<Parameter> all = named_tensors(module);
  std::erase_if(all,
                [](const Parameter& tensor) { return tensor.info.role == ParameterRole::kBuffer; });
  return all;
}

int64_t num_parameters(const Module& module) {
  int64_t sum = 0;
  module.visit([&sum](const std::string&, const Parameter& parameter) {
    if (parameter.info.role != ParameterRole::kBuffer) sum += parameter.shape.numel();
  });
  return sum;
}

void first_value(const std::string& name, const ParameterInfo& info, Tensor data, uint64_t seed) {
  const Sharding& sharding = info.sharding;
  const Shape whole = sharding.whole(data.shape());
  const uint64_t key = mixed_key(seed, hash_of(name));
  const bool is_constant =
      info.init.kind == Init::Kind::kZeros || info.init.kind == Init::Kind::kOnes;
  if (is_constant || sharding.is_whole()) return fill(std::move(data), {}, whole, info.init, key);
  for (const Sharding::Block& block : sharding.blocks(data.shape())) {
    fill_block(data, block, whole, info.init, key);
  }
}

void initialize(const Module& module, uint64_t seed) {
  module.visit([seed](const std::string& name, const Parameter& parameter) {
    const Tensor& data = parameter.variable.data();
    if (data.has_memory()) first_value(name, parameter.info, data, seed);
  });
}

}  // namespace megatron
