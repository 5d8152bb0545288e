#include "megatron/kernels/attention.h"

#include "megatron/kernels/cuda/cudnn_attention.h"
#include "megatron/kernels/cuda/math_attention.h"
#include "megatron/kernels/cuda/tensor_attention.h"

namespace megatron::kernels::cuda {

int64_t attention_forward_workspace_bytes(HeadsView out, TensorView lse, ConstHeadsView q,
                                          ConstHeadsView k, ConstHeadsView v,
                                          const AttentionSettings& settings, Stream stream) {
  return cudnn_forward_workspace_bytes(out, lse, q, k, v, settings, stream).value_or(0);
}

int64_t attention_backward_workspace_bytes(HeadsView dq, HeadsView dk, HeadsView dv,
                                           ConstHeadsView dout, ConstHeadsView out, ConstView lse,
                                           ConstHeadsView q, ConstHeadsView k, ConstHeadsView v,
                                           const AttentionSettings& settings, Stream stream) {
  return cudnn_backward_workspace_bytes(dq, dk, dv, dout, out, lse, q, k, v, settings, stream)
      .value_or(math_attention_delta_bytes(q));
}

void attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                       ConstHeadsView v, const AttentionSettings& settings, TensorView workspace,
                       Stream stream) {
  if (cudnn_attention_forward(out, lse, q, k, v, settings, workspace.data, stream)) return;
  if (tensor_attention_takes(q)) {
    return tensor_attention_forward(out, lse, q, k, v, settings, stream);
  }
  math_attention_forward(out, lse, q, k, v, settings, stream);
}

void attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, ConstHeadsView dout,
                        ConstHeadsView out, ConstView lse, ConstHeadsView q, ConstHeadsView k,
                        ConstHeadsView v, const AttentionSettings& settings, TensorView workspace,
                        Stream stream) {
  if (cudnn_attention_backward(dq, dk, dv, dout, out, lse, q, k, v, settings, workspace.data,
                               stream)) {
    return;
  }
  auto* const delta = static_cast<float*>(workspace.data);
  if (tensor_attention_takes(q)) {
    return tensor_attention_backward(dq, dk, dv, dout, out, lse, q, k, v, settings, delta, stream);
  }
  math_attention_backward(dq, dk, dv, dout, out, lse, q, k, v, settings, delta, stream);
}

}  // namespace megatron::kernels::cuda
