#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/nn/module.h"
#include "megatron/optim/flat_layout.h"

namespace megatron {

// A parameter as the optimizer sees it.
struct OptimizedParameter {
  std::string name;
  Variable variable;
  bool has_weight_decay = true;
  double lr_mult = 1.0;           // multiplies the learning rate
  bool has_decoupled_lr = false;  // embedding or output layer: --decoupled-lr applies
  // Counted in the global gradient norm. Off for what another rank counts: replicas of tensor
  // parallel ranks above 0, and copies of tied weights.
  bool counts_in_norm = true;
  bool has_own_bucket = false;  // tied weights, whose gradients meet those of another stage
};

// The trainable parameters of a module, with the weight decay of is_decayed.
std::vector<OptimizedParameter> optimized_parameters(const Module& module);

// No weight decay for biases and for everything with one axis, norms among them. Embeddings and
// position tables are decayed.
bool is_decayed(const std::string& name, const Shape& shape);

struct FlatParametersOptions {
  FlatLayoutOptions layout = {};
  bool accumulate_allreduce_grads_in_fp32 = false;  // main gradients: fp32 or the parameter's dtype
};

// The parameters of one dtype with their gradients.
struct FlatBuffer {
  DType dtype = DType::kFloat32;
  FlatLayout layout;               // places are parallel to `parameters`
  std::vector<size_t> parameters;  // positions in FlatParameters::parameters(), rising
  Tensor params;                   // [numel], dtype; padding is zero and stays so
  Tensor grads;                    // [numel], fp32 or dtype; padding is zero and stays so
};

// Moves parameters into flat buffers, one per dtype, and gives them main gradients there. From then
// on the variables are views of the buffers: what reduces, clips and updates works on whole
// buffers. Constants (no gradient wanted) are left alone.
class FlatParameters {
 public:
  // In the order of registration.
  FlatParameters(std::vector<OptimizedParameter> parameters, const FlatParametersOptions& options);

  const std::vector<OptimizedParameter>& parameters() const { return parameters_; }
  std::vector<FlatBuffer>& buffers() { return buffers_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }
  int64_t num_elements() const;  // of all parameters, without padding

  // Before the first microbatch of an iteration.
  void zero_grads();

 private:
  std::vector<OptimizedParameter> parameters_;
  std::vector<FlatBuffer> buffers_;
};

// FlatRanges as kernels::GroupRanges wants them: on the device of the buffers.
struct RangeTables {
  Tensor ends;    // int64
  Tensor groups;  // int32
};
RangeTables range_tables(const FlatRanges& ranges, Stream stream);

// The part of a flat tensor that belongs to a parameter, in the parameter's shape; shares memory.
Tensor part_of(const Tensor& flat, const FlatPlace& place, const Shape& shape);

}  // namespace megatron
