#include "megatron/kernels/cuda/cudnn_attention.h"

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::kernels::cuda {
namespace {

namespace graph = cudnn_frontend::graph;
using Tensor = std::shared_ptr<graph::Tensor_attributes>;

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{} failed: {}", call, cudnnGetErrorString(status)));
}

// --- Problems in cuDNN's terms ---

// The strides, in elements, of [batch, head, token, channel]; channels are adjacent.
struct Layout {
  int64_t batch = 0, head = 0, token = 0;
  bool operator==(const Layout& other) const = default;
};

enum Position { kQ, kK, kV, kOut, kDout, kDq, kDk, kDv, kNumTensors, kStats = kNumTensors };

// Everything that a plan depends on. Integers only, so that its bytes can be hashed.
struct Key {
  int64_t is_backward = 0;
  int64_t dtype = 0;
  int64_t batches = 0, heads = 0, groups = 0, sq = 0, sk = 0, d = 0;
  int64_t is_causal = 0;  // the last query sees all keys, each one before it one fewer
  int64_t scale_bits = 0;
  int64_t is_deterministic = 0;
  std::array<Layout, kNumTensors> layouts{};

  bool operator==(const Key& other) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (const uint64_t word : std::bit_cast<std::array<uint64_t, sizeof(Key) / 8>>(key)) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

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
  void add(Position position, const BasicHeadsView<Pointer>& x) {
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
  void* pointer(Position position) const { return pointers_[position]; }

  // REQUIRES: fits().
  void describe(Key& key) const {
    key.batches = heads_have_one_stride_ ? samples_ : samples_ * groups_;
    key.groups = heads_have_one_stride_ ? groups_ : 1;
    key.heads = key.groups * heads_per_group_;
    for (size_t i = 0; i < kNumTensors; ++i) {
      if (!is_used_[i]) continue;
      const GroupedLayout& x = layouts_[i];
      const int64_t head = are_of_queries_[i] && heads_per_group_ > 1 ? x.head : x.group;
      key.layouts[i] =
          heads_have_one_stride_ ? Layout{x.batch, head, x.token} : Layout{x.group, head, x.token};
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
         has_usual_mask(q, k, settings) && !settings.dropout.is_active();
}

Key key_of(const Tensors& tensors, const ConstHeadsView& q, const ConstHeadsView& k,
           const AttentionSettings& settings, bool is_backward, Stream stream) {
  Key key{.is_backward = is_backward,
          .dtype = static_cast<int64_t>(q.dtype),
          .sq = q.s,
          .sk = k.s,
          .d = q.d,
          .is_causal = settings.is_causal,
          .scale_bits = std::bit_cast<int32_t>(settings.scale),
          .is_deterministic = is_backward && stream.options.is_deterministic};
  tensors.describe(key);
  return key;
}

std::string text_of(const Key& key) {
  return fmt::format(
      "{}: {} samples, {} queries and {} keys, {} heads on {} groups, head size {}, {}{}{}",
      key.is_backward != 0 ? "backward" : "forward", key.batches, key.sq, key.sk, key.heads,
      key.groups, key.d, name_of(static_cast<DType>(key.dtype)),
      key.is_causal != 0 ? ", causal" : "", key.is_deterministic != 0 ? ", deterministic" : "");
}

// --- Plans ---

struct Plan {
  std::shared_ptr<graph::Graph> graph;  // null if cuDNN refused
  int64_t workspace_bytes = 0;
};

int64_t heads_at(const Key& key, Position position) {
  const bool is_of_keys = position == kK || position == kV || position == kDk || position == kDv;
  return is_of_keys ? key.groups : key.heads;
}

std::vector<int64_t> dims_of(const Key& key, Position position) {
  const bool is_of_keys = position == kK || position == kV || position == kDk || position == kDv;
  return {key.batches, heads_at(key, position), is_of_keys ? key.sk : key.sq, key.d};
}

std::vector<int64_t> strides_of(const Key& key, Position position) {
  const Layout& layout = key.layouts[position];
  return {layout.batch, layout.head, layout.token, 1};
}

Tensor input(graph::Graph& whole, const Key& key, Position position, const char* name) {
  return whole.tensor(graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(position)
                          .set_dim(dims_of(key, position))
                          .set_stride(strides_of(key, position)));
}

void make_output(const Tensor& tensor, const Key& key, Position position) {
  tensor->set_output(true)
      .set_uid(position)
      .set_dim(dims_of(key, position))
      .set_stride(strides_of(key, position));
}

// [batches, heads, sq, 1] fp32: the natural logarithm of the sum of exponentials, as in our lse.
void describe_stats(graph::Tensor_attributes& stats, const Key& key) {
  stats.set_uid(kStats)
      .set_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_dim({key.batches, key.heads, key.sq, 1})
      .set_stride({key.heads * key.sq, key.sq, 1, 1});
}

template <class Options>
Options options_of(const Key& key, const char* name) {
  Options options;
  options.set_name(name).set_attn_scale(std::bit_cast<float>(static_cast<int32_t>(key.scale_bits)));
  if (key.is_causal != 0) {
    options
        .set_diagonal_alignment(key.sq == key.sk
                                    ? cudnn_frontend::DiagonalAlignment_t::TOP_LEFT
                                    : cudnn_frontend::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  }
  return options;
}

void add_forward(graph::Graph& whole, const Key& key) {
  auto options = options_of<graph::SDPA_attributes>(key, "attention");
  options.set_generate_stats(true);
  auto [out, stats] = whole.sdpa(input(whole, key, kQ, "q"), input(whole, key, kK, "k"),
                                 input(whole, key, kV, "v"), options);
  make_output(out, key, kOut);
  describe_stats(stats->set_output(true), key);
}

void add_backward(graph::Graph& whole, const Key& key) {
  auto options = options_of<graph::SDPA_backward_attributes>(key, "attention_backward");
  options.set_deterministic_algorithm(key.is_deterministic != 0);
  graph::Tensor_attributes stats;
  describe_stats(stats.set_name("stats"), key);
  auto [dq, dk, dv] =
      whole.sdpa_backward(input(whole, key, kQ, "q"), input(whole, key, kK, "k"),
                          input(whole, key, kV, "v"), input(whole, key, kOut, "out"),
                          input(whole, key, kDout, "dout"), whole.tensor(stats), options);
  make_output(dq, key, kDq);
  make_output(dk, key, kDk);
  make_output(dv, key, kDv);
}

Plan make_plan(const Key& key, cudnnHandle_t handle) {
  auto whole = std::make_shared<graph::Graph>();
  whole
      ->set_io_data_type(static_cast<DType>(key.dtype) == DType::kBFloat16
                             ? cudnn_frontend::DataType_t::BFLOAT16
                             : cudnn_frontend::DataType_t::HALF)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
  key.is_backward != 0 ? add_backward(*whole, key) : add_forward(*whole, key);
  auto status = whole->build(handle, {cudnn_frontend::HeurMode_t::A});
  int64_t workspace_bytes = 0;
  if (status.is_good()) status = whole->get_workspace_size(workspace_bytes);
  if (status.is_bad()) {
    warn(fmt::format("attention: cuDNN refuses {} ({}); using slower own kernels", text_of(key),
                     status.get_message()));
    return {};
  }
  return {std::move(whole), workspace_bytes};
}

// The plans of a device and the cuDNN handles of its streams.
class Plans {
 public:
  // The plans of a device; they live as long as the process.
  static Plans& of(Device device) {
    // Never destroyed: the CUDA runtime may be unloaded before static objects are destroyed.
    static std::mutex mutex;
    static auto& all = *new std::unordered_map<int, std::unique_ptr<Plans>>();
    const std::lock_guard lock(mutex);
    auto& plans = all[device.index];
    if (plans == nullptr) plans = std::make_unique<Plans>();
    return *plans;
  }

  // The reference stays valid.
  const Plan& plan(const Key& key, Stream stream) {
    const std::lock_guard lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return *found->second;
    return *plans_.emplace(key, std::make_unique<Plan>(make_plan(key, handle_locked(stream))))
                .first->second;
  }

  cudnnHandle_t handle(Stream stream) {
    const std::lock_guard lock(mutex_);
    return handle_locked(stream);
  }

 private:
  cudnnHandle_t handle_locked(Stream stream) {
    cudnnHandle_t& handle = handles_[stream.native];
    if (handle == nullptr) {
      cudnnHandle_t made = nullptr;
      check_cudnn(cudnnCreate(&made), "cudnnCreate");
      check_cudnn(cudnnSetStream(made, static_cast<cudaStream_t>(stream.native)), "cudnnSetStream");
      handle = made;
    }
    return handle;
  }

  std::mutex mutex_;
  std::unordered_map<Key, std::unique_ptr<const Plan>, KeyHash> plans_;
  std::unordered_map<void*, cudnnHandle_t> handles_;
};

// Is the library installed? Warns once if it is not.
bool is_installed() {
  static const bool found = [] {
    try {
      cudnnGetVersion();
      return true;
    } catch (const DeviceError& error) {
      warn(fmt::format("attention: {}; using slower own kernels", error.what()));
      return false;
    }
  }();
  return found;
}

// Null if cuDNN does not serve the call.
const Plan* plan_of(const Tensors& tensors, const ConstHeadsView& q, const ConstHeadsView& k,
                    const AttentionSettings& settings, bool is_backward, Stream stream) {
  if (!takes(q, k, settings) || !tensors.fits() || !is_installed()) return nullptr;
  const Plan& plan =
      Plans::of(stream.device).plan(key_of(tensors, q, k, settings, is_backward, stream), stream);
  return plan.graph == nullptr ? nullptr : &plan;
}

void run(const Plan& plan, std::unordered_map<int64_t, void*> pointers, void* workspace,
         Stream stream) {
  auto status = plan.graph->execute(Plans::of(stream.device).handle(stream), pointers, workspace);
  if (status.is_bad()) {
    throw DeviceError(fmt::format("attention: cuDNN failed: {}", status.get_message()));
  }
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

std::optional<int64_t> workspace_bytes(const Plan* plan) {
  if (plan == nullptr) return std::nullopt;
  return plan->workspace_bytes;
}

}  // namespace

bool has_cudnn_attention() { return true; }

std::optional<int64_t> cudnn_forward_workspace_bytes(
    const HeadsView& out, const TensorView& lse, const ConstHeadsView& q, const ConstHeadsView& k,
    const ConstHeadsView& v, const AttentionSettings& settings, Stream stream) {
  if (lse.is_null()) return std::nullopt;
  return workspace_bytes(plan_of(forward_tensors(out, q, k, v), q, k, settings, false, stream));
}

std::optional<int64_t> cudnn_backward_workspace_bytes(
    const HeadsView& dq, const HeadsView& dk, const HeadsView& dv, const ConstHeadsView& dout,
    const ConstHeadsView& out, const ConstView&, const ConstHeadsView& q, const ConstHeadsView& k,
    const ConstHeadsView& v, const AttentionSettings& settings, Stream stream) {
  return workspace_bytes(
      plan_of(backward_tensors(dq, dk, dv, dout, out, q, k, v), q, k, settings, true, stream));
}

bool cudnn_attention_forward(const HeadsView& out, const TensorView& lse, const ConstHeadsView& q,
                             const ConstHeadsView& k, const ConstHeadsView& v,
                             const AttentionSettings& settings, void* workspace, Stream stream) {
  if (lse.is_null()) return false;
  const Tensors tensors = forward_tensors(out, q, k, v);
  const Plan* const plan = plan_of(tensors, q, k, settings, false, stream);
  if (plan == nullptr) return false;
  run(*plan,
      {{kQ, tensors.pointer(kQ)},
       {kK, tensors.pointer(kK)},
       {kV, tensors.pointer(kV)},
       {kOut, tensors.pointer(kOut)},
       {kStats, lse.data}},
      workspace, stream);
  return true;
}

bool cudnn_attention_backward(const HeadsView& dq, const HeadsView& dk, const HeadsView& dv,
                              const ConstHeadsView& dout, const ConstHeadsView& out,
                              const ConstView& lse, const ConstHeadsView& q,
                              const ConstHeadsView& k, const ConstHeadsView& v,
                              const AttentionSettings& settings, void* workspace, Stream stream) {
  const Tensors tensors = backward_tensors(dq, dk, dv, dout, out, q, k, v);
  const Plan* const plan = plan_of(tensors, q, k, settings, true, stream);
  if (plan == nullptr) return false;
  std::unordered_map<int64_t, void*> pointers = {{kStats, const_cast<void*>(lse.data)}};
  for (const Position position : {kQ, kK, kV, kOut, kDout, kDq, kDk, kDv}) {
    pointers.emplace(position, tensors.pointer(position));
  }
  run(*plan, std::move(pointers), workspace, stream);
  return true;
}

}  // namespace megatron::kernels::cuda
