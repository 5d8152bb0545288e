#include "megatron/kernels/cuda/cudnn_attention.h"

#include <array>
#include <bit>
#include <utility>

#include "megatron/kernels/cuda/cudnn_plans.h"

namespace megatron::kernels::cuda {
namespace {

// The layout of queries, outputs, keys or values, with heads as groups of equal strides.
struct GroupedLayout {
  int64_t batch, group, head, token;
};

template <class Pointer>
bool is_aligned(const BasicHeadsView<Pointer>& x) {
  const int64_t elements = 16 / size_of(x.dtype);
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride_s % elements == 0 &&
         x.stride_b % elements == 0 && x.stride_group % elements == 0 &&
         x.stride_head % elements == 0;
}

template <class Pointer>
GroupedLayout grouped(const BasicHeadsView<Pointer>& x, int64_t heads_per_group) {
  if (x.heads_per_group == heads_per_group) {
    return {x.stride_b, x.stride_group, x.stride_head, x.stride_s};
  }
  return {x.stride_b, heads_per_group * x.stride_group, x.stride_group, x.stride_s};
}

// The tensors of a pass in cuDNN's four dimensions. Either the heads of all groups have one stride,
// or (for the fused projection with several heads to a group) groups become additional samples.
// fits() is false if neither is possible.
class Tensors {
 public:
  Tensors(const ConstHeadsView& q, const ConstHeadsView& k)
      : samples_(q.b), groups_(k.heads), heads_per_group_(q.heads / k.heads) {}

  template <class Pointer>
  void add(CudnnTensor position, const BasicHeadsView<Pointer>& x) {
    fits_ =
        fits_ && is_aligned(x) && (x.heads_per_group == 1 || x.heads_per_group == heads_per_group_);
    const bool is_of_queries =
        position != kK && position != kV && position != kDk && position != kDv;
    const GroupedLayout layout = grouped(x, is_of_queries ? heads_per_group_ : 1);
    layouts_[position] = layout;
    are_of_queries_[position] = is_of_queries;
    is_used_[position] = true;
    pointers_[position] = const_cast<void*>(static_cast<const void*>(x.data));
    if (is_of_queries && groups_ > 1 && heads_per_group_ > 1) {
      heads_have_one_stride_ =
          heads_have_one_stride_ && layout.group == heads_per_group_ * layout.head;
    }
    groups_are_samples_ =
        groups_are_samples_ && (samples_ == 1 || layout.batch == groups_ * layout.group);
  }

  bool fits() const { return fits_ && (heads_have_one_stride_ || groups_are_samples_); }
  void* pointer(CudnnTensor position) const { return pointers_[position]; }

  // REQUIRES: fits().
  void describe(CudnnKey& key) const {
    key.batches = heads_have_one_stride_ ? samples_ : samples_ * groups_;
    key.groups = heads_have_one_stride_ ? groups_ : 1;
    key.heads = key.groups * heads_per_group_;
    for (size_t i = 0; i < kNumTensors; ++i) {
      if (!is_used_[i]) continue;
      const GroupedLayout& x = layouts_[i];
      const int64_t head = are_of_queries_[i] && heads_per_group_ > 1 ? x.head : x.group;
      key.layouts[i] = heads_have_one_stride_ ? CudnnLayout{x.batch, head, x.token}
                                              : CudnnLayout{x.group, head, x.token};
    }
  }

 private:
  int64_t samples_, groups_, heads_per_group_;
  bool fits_ = true;
  bool heads_have_one_stride_ = true;
  bool groups_are_samples_ = true;
  std::array<GroupedLayout, kNumTensors> layouts_{};
  std::array<bool, kNumTensors> are_of_queries_{};
  std::array<bool, kNumTensors> is_used_{};
  std::array<void*, kNumTensors> pointers_{};
};

// cuDNN's causal mask lets the last query see all keys.
bool has_usual_mask(const ConstHeadsView& q, const ConstHeadsView& k,
                    const AttentionSettings& settings) {
  return !settings.is_causal || settings.query_offset - settings.key_offset + q.s == k.s;
}

bool takes(const ConstHeadsView& q, const ConstHeadsView& k, const AttentionSettings& settings) {
  return (q.dtype == DType::kBFloat16 || q.dtype == DType::kFloat16) && q.d % 8 == 0 && q.b > 0 &&
         q.s > 0 && k.s > 0 && settings.document_starts.data == nullptr &&
         settings.prefix_ends.data == nullptr && settings.key_padding_mask.data == nullptr &&
         settings.alibi_slopes.data == nullptr && settings.relative_bias.data == nullptr &&
         settings.logit_cap == 0 && (settings.window == 0 || (settings.is_causal && q.s <= k.s)) &&
         has_usual_mask(q, k, settings) && !settings.dropout.is_active();
}

CudnnKey key_of(const Tensors& tensors, const ConstHeadsView& q, const ConstHeadsView& k,
                const AttentionSettings& settings, bool is_backward, Stream stream) {
  CudnnKey key{.is_backward = is_backward,
               .dtype = static_cast<int64_t>(q.dtype),
               .sq = q.s,
               .sk = k.s,
               .d = q.d,
               .is_causal = settings.is_causal,
               .window = settings.window < k.s ? settings.window : 0,
               .scale_bits = std::bit_cast<int32_t>(settings.scale),
               .is_deterministic = is_backward && stream.options.is_deterministic};
  tensors.describe(key);
  return key;
}

// The key of a call that cuDNN may serve.
std::optional<CudnnKey> key_if_taken(const Tensors& tensors, const ConstHeadsView& q,
                                     const ConstHeadsView& k, const AttentionSettings& settings,
                                     bool is_backward, Stream stream) {
  if (!takes(q, k, settings) || !tensors.fits() || !has_cudnn_library()) return std::nullopt;
  return key_of(tensors, q, k, settings, is_backward, stream);
}

Tensors forward_tensors(const HeadsView& out, const ConstHeadsView& q, const ConstHeadsView& k,
                        const ConstHeadsView& v) {
  Tensors tensors(q, k);
  tensors.add(kQ, q);
  tensors.add(kK, k);
  tensors.add(kV, v);
  tensors.add(kOut, out);
  return tensors;
}

Tensors backward_tensors(const HeadsView& dq, const HeadsView& dk, const HeadsView& dv,
                         const ConstHeadsView& dout, const ConstHeadsView& out,
                         const ConstHeadsView& q, const ConstHeadsView& k,
                         const ConstHeadsView& v) {
  Tensors tensors(q, k);
  tensors.add(kQ, q);
  tensors.add(kK, k);
  tensors.add(kV, v);
  tensors.add(kOut, out);
  tensors.add(kDout, dout);
  tensors.add(kDq, dq);
  tensors.add(kDk, dk);
  tensors.add(kDv, dv);
  return tensors;
}

}  // namespace

bool has_cudnn_attention() { return true; }

std::optional<int64_t> cudnn_forward_workspace_bytes(
    const HeadsView& out, const TensorView& lse, const ConstHeadsView& q, const ConstHeadsView& k,
    const ConstHeadsView& v, const AttentionSettings& settings, Stream stream) {
  if (lse.is_null()) return std::nullopt;
  const auto key = key_if_taken(forward_tensors(out, q, k, v), q, k, settings, false, stream);
  return key ? planned_workspace_bytes(*key, stream) : std::nullopt;
}

std::optional<int64_t> cudnn_backward_workspace_bytes(
    const HeadsView& dq, const HeadsView& dk, const HeadsView& dv, const ConstHeadsView& dout,
    const ConstHeadsView& out, const ConstView&, const ConstHeadsView& q, const ConstHeadsView& k,
    const ConstHeadsView& v, const AttentionSettings& settings, Stream stream) {
  const auto key =
      key_if_taken(backward_tensors(dq, dk, dv, dout, out, q, k, v), q, k, settings, true, stream);
  return key ? planned_workspace_bytes(*key, stream) : std::nullopt;
}

bool cudnn_attention_forward(const HeadsView& out, const TensorView& lse, const ConstHeadsView& q,
                             const ConstHeadsView& k, const ConstHeadsView& v,
                             const AttentionSettings& settings, void* workspace, Stream stream) {
  if (lse.is_null()) return false;
  const Tensors tensors = forward_tensors(out, q, k, v);
  const auto key = key_if_taken(tensors, q, k, settings, false, stream);
  return key && run_planned(*key,
                            {{kQ, tensors.pointer(kQ)},
                             {kK, tensors.pointer(kK)},
                             {kV, tensors.pointer(kV)},
                             {kOut, tensors.pointer(kOut)},
                             {kStats, lse.data}},
                            workspace, stream);
}

bool cudnn_attention_backward(const HeadsView& dq, const HeadsView& dk, const HeadsView& dv,
                              const ConstHeadsView& dout, const ConstHeadsView& out,
                              const ConstView& lse, const ConstHeadsView& q,
                              const ConstHeadsView& k, const ConstHeadsView& v,
                              const AttentionSettings& settings, void* workspace, Stream stream) {
  const Tensors tensors = backward_tensors(dq, dk, dv, dout, out, q, k, v);
  CudnnPointers pointers = {{kStats, const_cast<void*>(lse.data)}};
  for (const CudnnTensor position : {kQ, kK, kV, kOut, kDout, kDq, kDk, kDv}) {
    pointers.emplace(position, tensors.pointer(position));
  }
  const auto key = key_if_taken(tensors, q, k, settings, true, stream);
  return key && run_planned(*key, std::move(pointers), workspace, stream);
}

}  // namespace megatron::kernels::cuda
