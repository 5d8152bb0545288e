#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/nn/fp8_layer.h"
#include "megatron/nn/module.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// A parameter and its properties for the optimizer.
struct OptimizedParameter {
  std::string name;
  Variable variable;
  bool has_weight_decay = true;
  double lr_mult = 1.0;           // multiplies the learning rate
  bool has_decoupled_lr = false;  // embedding or output layer: --decoupled-lr applies
  // True if the global gradient norm includes it. False if another rank counts it: on ranks that
  // are not the first along shared_axes, and for copies of tied weights.
  bool counts_in_norm = true;
  // Clipped separately: by the norm of such parameters alone.
  bool is_clipped_apart = false;
  bool is_tied = false;  // gradients are summed with another pipeline stage's; has its own bucket
  MeshAxes gradient_axes = kDenseDataAxes;  // see ParameterInfo
  MeshAxes shared_axes = {};                // see ParameterInfo
  Sharding sharding = {};                   // this rank's part of the whole tensor
  bool is_layer_matrix = false;         // neither embedding nor output layer: Muon may update it
  std::vector<int64_t> row_parts = {};  // see ParameterInfo
  // The layer that has it in FP8, if ranks gather it so (parallel/fp8_gather.h). With several
  // shares it has no elements beside this rank's share.
  const Fp8Layer* fp8 = nullptr;
};

// The trainable parameters of a module on this rank, from their ParameterInfo.
std::vector<OptimizedParameter> optimized_parameters(const Module& module,
                                                     const ParallelContext& parallel = {});

// Biases and norms have no weight decay; all others have, including embeddings and position tables.
bool is_decayed(ParameterRole role);

// True for weights of linear layers except the output layer.
bool is_layer_matrix(const ParameterInfo& info);

struct FlatParametersOptions {
  FlatLayoutOptions layout = {};
  bool accumulate_allreduce_grads_in_fp32 = false;  // main gradients: fp32 or the parameter's dtype
  // Ranks of an instance that reduce a bucket together update equal shares of it (ZeRO stage 1,
  // Rajbhandari et al. 2020, arXiv:1910.02054). Without it each of them updates everything.
  bool divides_state = false;
  // With several shares: keep only this rank's share of the gradients (stage 2), or of the
  // parameters as well (stage 3). Partial gradients, which are few, stay whole, and so do their
  // parameters.
  bool divides_gradients = false;
  bool divides_parameters = false;
  bool separates_matrices = false;  // separate buffers for layer matrices, for Muon
  // Fills a parameter that was without memory (nn/deferred_memory.h); null: its elements are
  // undefined.
  std::function<void(const OptimizedParameter& parameter, Tensor data)> first_value = nullptr;
};

// Parameters of one dtype whose gradients are summed over the same ranks, with their gradients.
struct FlatBuffer {
  DType dtype = DType::kFloat32;
  MeshAxes gradient_axes;
  comm::Group partial;  // ranks whose gradients are partial sums of this rank's samples
  // Ranks with the same parameters and other samples: each of `sharers` updates a share, and
  // `copies` all update this rank's. One group along the other, they are all of them.
  comm::Group sharers;
  comm::Group copies;
  bool has_matrices = false;       // of layers, and nothing else
  bool is_clipped_apart = false;   // see OptimizedParameter, and nothing else
  bool is_in_fp8 = false;          // weights that ranks gather in FP8, and nothing else
  FlatLayout layout;               // places are parallel to `parameters`
  std::vector<size_t> parameters;  // positions in FlatParameters::parameters(), rising
  Tensor params;                   // [numel], dtype; padding is zero and stays so
  Tensor grads;                    // [numel], fp32 or dtype; padding is zero and stays so
  std::vector<FlatSpan> shares;    // the elements that this rank updates, rising
  // Divided gradients or parameters: `grads` or `params` has only the shares, one after the other,
  // and the variables are views of these tensors, one for each bucket, without memory.
  // DividedGradients and DividedParameters give them memory for a while. Parameters that ranks
  // gather in FP8 are divided, too, and never get memory.
  std::vector<Tensor> bucket_grads;
  std::vector<Tensor> bucket_params;

  bool has_partial_gradients() const { return !gradient_axes.without(kDataAxes).empty(); }
};

// This rank's share number `share` of a flat tensor of the buffer, &FlatBuffer::params or grads.
Tensor share_of(const FlatBuffer& buffer, Tensor FlatBuffer::*flat, size_t share);

// Moves parameters into flat buffers, one per dtype and axes of gradients (and of matrix, of what
// is clipped apart, and of what is gathered in FP8), and gives them main gradients there. After
// that the variables are views of the buffers, and reductions, clipping and updates work on whole
// buffers. Constants (without gradient) are not moved.
class FlatParameters {
 public:
  // In the order of registration. `parallel` has the groups of the parameters' gradients; the
  // default is one rank alone.
  FlatParameters(std::vector<OptimizedParameter> parameters, const FlatParametersOptions& options,
                 const ParallelContext& parallel = {});

  const std::vector<OptimizedParameter>& parameters() const { return parameters_; }
  std::vector<FlatBuffer>& buffers() { return buffers_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }
  int64_t num_elements() const;  // of all parameters, without padding

  // Call before the first microbatch of an iteration.
  void zero_grads();

  // A part of one parameter: the range of its elements in row-major order, and their memory.
  using PartVisitor = std::function<void(const OptimizedParameter& parameter, const FlatSpan& part,
                                         const Tensor& elements)>;
  // Visits this rank's parts of the divided parameters. All others are whole.
  void visit_divided(const PartVisitor& visit) const;

 private:
  std::vector<OptimizedParameter> parameters_;
  std::vector<FlatBuffer> buffers_;
};

// A parameter's elements in a span of its buffer.
struct FlatPart {
  size_t parameter = 0;  // position in FlatBuffer::parameters
  FlatSpan part;         // of the parameter's elements
  int64_t begin = 0;     // in the span
};
std::vector<FlatPart> parts_in(const FlatBuffer& buffer, const FlatSpan& span);

// FlatRanges as kernels::GroupRanges on the buffers' device.
struct RangeTables {
  Tensor ends;    // int64
  Tensor groups;  // int32
};
RangeTables range_tables(const FlatRanges& ranges, Stream stream);

// A parameter's part of a flat tensor, in the parameter's shape; shares memory.
Tensor part_of(const Tensor& flat, const FlatPlace& place, const Shape& shape);

}  // namespace megatron
