#include "megatron/kernels/attention.h"

#include <algorithm>
#include <cstdint>

#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/cudnn_attention.h"
#include "megatron/kernels/cuda/math_attention.h"
#include "megatron/kernels/cuda/tensor_attention.h"

namespace megatron::kernels::cuda {

bool tensor_forward_takes(std::initializer_list<ConstHeadsView> views,
                          const AttentionSettings& settings) {
  const ConstHeadsView& q = *views.begin();
  const auto is_aligned = [](const ConstHeadsView& x) {
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride_s % 8 == 0 &&
           x.stride_b % 8 == 0 && x.stride_group % 8 == 0 && x.stride_head % 8 == 0;
  };
  return (q.dtype == DType::kBFloat16 || q.dtype == DType::kFloat16) && q.d <= 128 &&
         q.d % 8 == 0 && q.s >= 16 &&
         (!settings.dropout.is_active() || settings.key_offset % kDropoutKeys == 0) &&
         std::all_of(views.begin(), views.end(), is_aligned);
}

bool tensor_backward_takes(std::initializer_list<ConstHeadsView> views,
                           const AttentionSettings& settings, Device device) {
  return tensor_forward_takes(views, settings) &&
         tensor_backward_shared_bytes(views.begin()->d) <= max_shared_bytes(device);
}

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
      .value_or(
          tensor_backward_takes({q, k, v, out, dout, dq, dk, dv}, settings, stream.device)
              ? BackwardBytes(q.b, q.heads, q.s, k.s, q.d, settings.relative_bias.data != nullptr)
                    .total()
              : math_attention_delta_bytes(q));
}

void attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                       ConstHeadsView v, const AttentionSettings& settings, TensorView workspace,
                       Stream stream) {
  if (cudnn_attention_forward(out, lse, q, k, v, settings, workspace.data, stream)) {
    if (settings.sinks.data != nullptr) cuda::add_attention_sinks(out, lse, settings.sinks, stream);
    return;
  }
  if (tensor_forward_takes({q, k, v, out}, settings)) {
    return tensor_attention_forward(out, lse, q, k, v, settings, stream);
  }
  math_attention_forward(out, lse, q, k, v, settings, stream);
}

void attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                        ConstHeadsView dout, ConstHeadsView out, ConstView lse, ConstHeadsView q,
                        ConstHeadsView k, ConstHeadsView v, const AttentionSettings& settings,
                        TensorView workspace, Stream stream) {
  if (cudnn_attention_backward(dq, dk, dv, dout, out, lse, q, k, v, settings, workspace.data,
                               stream)) {
    return;
  }
  if (tensor_backward_takes({q, k, v, out, dout, dq, dk, dv}, settings, stream.device)) {
    return tensor_attention_backward(dq, dk, dv, drelative_bias, dout, out, lse, q, k, v, settings,
                                     workspace.data, stream);
  }
  auto* const delta = static_cast<float*>(workspace.data);
  math_attention_backward(dq, dk, dv, drelative_bias, dout, out, lse, q, k, v, settings, delta,
                          stream);
}

}  // namespace megatron::kernels::cuda
