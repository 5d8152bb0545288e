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
  bool is_tied = false;  // its gradients meet those of another pipeline stage; has its own bucket
  bool has_partial_gradients = false;  // tensor-parallel ranks have to sum them
  Sharding sharding = {};              // of the parameter, as a part of the whole tensor
};

// The trainable parameters of a module on this tensor-parallel rank, by what their ParameterInfo
// says. A parameter that every such rank has whole is counted on the first alone.
std::vector<OptimizedParameter> optimized_parameters(const Module& module,
                                                     int tensor_parallel_rank = 0);

// Biases and norms have no weight decay; everything else has, embeddings and position tables too.
bool is_decayed(ParameterRole role);

struct FlatParametersOptions {
  FlatLayoutOptions layout = {};
  bool accumulate_allreduce_grads_in_fp32 = false;  // main gradients: fp32 or the parameter's dtype
  // Of how many data-parallel ranks, each with a share of every bucket to update (ZeRO stage 1,
  // Rajbhandari et al. 2020, arXiv:1910.02054), this is which. One: this rank updates everything.
  int64_t share = 0;
  int64_t num_shares = 1;
};

// The parameters of one dtype, and of one kind of gradient, with their gradients.
struct FlatBuffer {
  DType dtype = DType::kFloat32;
  bool has_partial_gradients = false;  // as OptimizedParameter
  FlatLayout layout;                   // places are parallel to `parameters`
  std::vector<size_t> parameters;      // positions in FlatParameters::parameters(), rising
  Tensor params;                       // [numel], dtype; padding is zero and stays so
  Tensor grads;                        // [numel], fp32 or dtype; padding is zero and stays so
  std::vector<FlatSpan> shares;        // what this rank updates, rising
};

// Moves parameters into flat buffers, one per dtype and kind of gradient, and gives them main
// gradients there. From then on the variables are views of the buffers: what reduces, clips and
// updates works on whole buffers. Constants (no gradient wanted) are left alone.
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
