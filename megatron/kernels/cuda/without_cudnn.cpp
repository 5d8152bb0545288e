#include "megatron/kernels/cuda/cudnn_attention.h"

// For builds without cudnn-frontend's headers: own kernels serve every call.
namespace megatron::kernels::cuda {

bool has_cudnn_attention() { return false; }

std::optional<int64_t> cudnn_forward_workspace_bytes(const HeadsView&, const TensorView&,
                                                     const ConstHeadsView&, const ConstHeadsView&,
                                                     const ConstHeadsView&,
                                                     const AttentionSettings&, Stream) {
  return std::nullopt;
}

std::optional<int64_t> cudnn_backward_workspace_bytes(const HeadsView&, const HeadsView&,
                                                      const HeadsView&, const ConstHeadsView&,
                                                      const ConstHeadsView&, const ConstView&,
                                                      const ConstHeadsView&, const ConstHeadsView&,
                                                      const ConstHeadsView&,
                                                      const AttentionSettings&, Stream) {
  return std::nullopt;
}

bool cudnn_attention_forward(const HeadsView&, const TensorView&, const ConstHeadsView&,
                             const ConstHeadsView&, const ConstHeadsView&, const AttentionSettings&,
                             void*, Stream) {
  return false;
}

bool cudnn_attention_backward(const HeadsView&, const HeadsView&, const HeadsView&,
                              const ConstHeadsView&, const ConstHeadsView&, const ConstView&,
                              const ConstHeadsView&, const ConstHeadsView&, const ConstHeadsView&,
                              const AttentionSettings&, void*, Stream) {
  return false;
}

}  // namespace megatron::kernels::cuda
