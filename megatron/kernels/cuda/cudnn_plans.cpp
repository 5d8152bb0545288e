#include "megatron/kernels/cuda/cudnn_plans.h"

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <bit>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/dtype.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/kernels/algorithm_choice.h"
#include "megatron/kernels/cuda/algorithm_search.h"

namespace megatron::kernels::cuda {
namespace {

namespace graph = cudnn_frontend::graph;
using Tensor = std::shared_ptr<graph::Tensor_attributes>;

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{} failed: {}", call, cudnnGetErrorString(status)));
}

struct KeyHash {
  size_t operator()(const CudnnKey& key) const {
    uint64_t hash = 0;
    for (const uint64_t word : std::bit_cast<std::array<uint64_t, sizeof(CudnnKey) / 8>>(key)) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

std::string text_of(const CudnnKey& key) {
  return fmt::format(
      "{}: {} samples, {} queries and {} keys, {} heads on {} groups, head size {}, {}{}{}{}",
      key.is_backward != 0 ? "backward" : "forward", key.batches, key.sq, key.sk, key.heads,
      key.groups, key.d, name_of(static_cast<DType>(key.dtype)),
      key.is_causal != 0 ? ", causal" : "",
      key.window > 0 ? fmt::format(", window {}", key.window) : "",
      key.is_deterministic != 0 ? ", deterministic" : "");
}

// --- Graphs ---

int64_t heads_at(const CudnnKey& key, CudnnTensor position) {
  const bool is_of_keys = position == kK || position == kV || position == kDk || position == kDv;
  return is_of_keys ? key.groups : key.heads;
}

std::vector<int64_t> dims_of(const CudnnKey& key, CudnnTensor position) {
  const bool is_of_keys = position == kK || position == kV || position == kDk || position == kDv;
  return {key.batches, heads_at(key, position), is_of_keys ? key.sk : key.sq, key.d};
}

std::vector<int64_t> strides_of(const CudnnKey& key, CudnnTensor position) {
  const CudnnLayout& layout = key.layouts[position];
  return {layout.batch, layout.head, layout.token, 1};
}

Tensor input(graph::Graph& whole, const CudnnKey& key, CudnnTensor position, const char* name) {
  return whole.tensor(graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(position)
                          .set_dim(dims_of(key, position))
                          .set_stride(strides_of(key, position)));
}

void make_output(const Tensor& tensor, const CudnnKey& key, CudnnTensor position) {
  tensor->set_output(true)
      .set_uid(position)
      .set_dim(dims_of(key, position))
      .set_stride(strides_of(key, position));
}

// [batches, heads, sq, 1] fp32: the natural logarithm of the sum of exponentials, as in our lse.
void describe_stats(graph::Tensor_attributes& stats, const CudnnKey& key) {
  stats.set_uid(kStats)
      .set_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_dim({key.batches, key.heads, key.sq, 1})
      .set_stride({key.heads * key.sq, key.sq, 1, 1});
}

template <class Options>
Options options_of(const CudnnKey& key, const char* name) {
  Options options;
  options.set_name(name).set_attn_scale(std::bit_cast<float>(static_cast<int32_t>(key.scale_bits)));
  if (key.is_causal != 0) {
    options
        .set_diagonal_alignment(key.sq == key.sk
                                    ? cudnn_frontend::DiagonalAlignment_t::TOP_LEFT
                                    : cudnn_frontend::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  }
  if (key.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(key.window));
  return options;
}

void add_forward(graph::Graph& whole, const CudnnKey& key) {
  auto options = options_of<graph::SDPA_attributes>(key, "attention");
  options.set_generate_stats(true);
  auto [out, stats] = whole.sdpa(input(whole, key, kQ, "q"), input(whole, key, kK, "k"),
                                 input(whole, key, kV, "v"), options);
  make_output(out, key, kOut);
  describe_stats(stats->set_output(true), key);
}

void add_backward(graph::Graph& whole, const CudnnKey& key) {
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

// A graph with its offers of plans, none of which is built.
std::shared_ptr<graph::Graph> offering_graph(const CudnnKey& key, cudnnHandle_t handle,
                                             std::string& refusal) {
  auto whole = std::make_shared<graph::Graph>();
  whole
      ->set_io_data_type(static_cast<DType>(key.dtype) == DType::kBFloat16
                             ? cudnn_frontend::DataType_t::BFLOAT16
                             : cudnn_frontend::DataType_t::HALF)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
  key.is_backward != 0 ? add_backward(*whole, key) : add_forward(*whole, key);
  auto status = whole->validate();
  if (status.is_good()) status = whole->build_operation_graph(handle);
  if (status.is_good()) status = whole->create_execution_plans({cudnn_frontend::HeurMode_t::A});
  if (status.is_good()) status = whole->check_support();
  if (status.is_good()) return whole;
  refusal = status.get_message();
  return nullptr;
}

// --- Plans ---

struct Plan {
  std::shared_ptr<graph::Graph> graph;  // null if cuDNN refused
  int64_t index = 0;                    // of the plan among those of the graph
  int64_t workspace_bytes = 0;
  bool is_final = true;  // else a search may find a faster one
};

// A built plan of a graph.
struct Offer {
  int64_t index;
  std::string name;
  int64_t workspace_bytes;
};

std::optional<Offer> built_offer(graph::Graph& whole, int64_t index) {
  Offer offer{.index = index, .name = "", .workspace_bytes = 0};
  if (whole.build_plan_at_index(index).is_bad() ||
      whole.get_plan_name_at_index(index, offer.name).is_bad() ||
      whole.get_workspace_size_plan_at_index(index, offer.workspace_bytes).is_bad()) {
    return std::nullopt;
  }
  return offer;
}

// The first offer that can be built: cuDNN's own choice.
std::optional<Offer> first_offer(graph::Graph& whole) {
  const int64_t count = whole.get_execution_plan_count();
  for (int64_t i = 0; i < count; ++i) {
    if (auto offer = built_offer(whole, i)) return offer;
  }
  return std::nullopt;
}

// From now on only plans whose bits are the same in each run are built, except for the backward
// pass: there determinism must be requested, and has separate plans.
void deselect_others(graph::Graph& whole, const CudnnKey& key) {
  if (key.is_backward != 0) return;
  whole.deselect_numeric_notes({cudnn_frontend::NumericalNote_t::NONDETERMINISTIC});
}

// The offer that the file of choices names.
std::optional<Offer> named_offer(graph::Graph& whole, const CudnnKey& key,
                                 const std::string& name) {
  deselect_others(whole, key);
  const int64_t count = whole.get_execution_plan_count();
  for (int64_t i = 0; i < count; ++i) {
    std::string found;
    if (whole.get_plan_name_at_index(i, found).is_good() && found == name) {
      return built_offer(whole, i);
    }
  }
  return std::nullopt;
}

// The search does not pay for smaller calls: each plan that it builds takes a part of a second.
bool is_small(const CudnnKey& key) {
  constexpr double kSmallFlops = 1e10;
  return 4.0 * static_cast<double>(key.batches) * static_cast<double>(key.heads) *
             static_cast<double>(key.sq) * static_cast<double>(key.sk) *
             static_cast<double>(key.d) <
         kSmallFlops;
}

std::string question_of(const CudnnKey& key, Device device) {
  std::string strides;
  for (const CudnnLayout& x : key.layouts) {
    strides += fmt::format(" {}/{}/{}", x.batch, x.head, x.token);
  }
  return fmt::format("{}, cuDNN {}: attention {}, strides{}", machine_of(device), cudnnGetVersion(),
                     text_of(key), strides);
}

Plan make_plan(const CudnnKey& key, cudnnHandle_t handle, Device device) {
  std::string refusal = "no plan can be built";
  auto whole = offering_graph(key, handle, refusal);
  ChoiceFile* const file = is_small(key) ? nullptr : choices_of_process();
  std::optional<Offer> offer;
  bool is_final = file == nullptr;
  if (whole != nullptr && file != nullptr) {
    if (const auto name = file->find(question_of(key, device))) {
      offer = named_offer(*whole, key, *name);
      is_final = true;
    }
  }
  if (whole != nullptr && !offer) offer = first_offer(*whole);
  if (!offer) {
    warn(fmt::format("attention: cuDNN refuses {} ({}); using slower own kernels", text_of(key),
                     refusal));
    return {};
  }
  return {std::move(whole), offer->index, offer->workspace_bytes, is_final};
}

// The fastest offer that needs no more scratch memory than `first`, which is not final. Takes the
// pointers by value: a graph adds those of its own constants, and does not replace another graph's.
Plan searched_plan(const CudnnKey& key, const Plan& first, CudnnPointers pointers, void* workspace,
                   cudnnHandle_t handle, Stream stream) {
  constexpr size_t kMaxOffers = 4;
  constexpr int kRounds = 3;
  Plan plan = first;
  plan.is_final = true;
  std::string refusal;
  // A graph of its own: other threads use the one of `first`.
  const auto whole = offering_graph(key, handle, refusal);
  auto own = whole == nullptr ? std::nullopt : first_offer(*whole);
  if (!own) return plan;
  std::vector<Offer> offers = {*own};
  deselect_others(*whole, key);
  const int64_t count = whole->get_execution_plan_count();
  for (int64_t i = own->index + 1; i < count && offers.size() < kMaxOffers; ++i) {
    auto offer = built_offer(*whole, i);
    if (offer && offer->workspace_bytes <= first.workspace_bytes) offers.push_back(*offer);
  }
  std::vector<std::string> names;
  for (const Offer& offer : offers) names.push_back(offer.name);
  const size_t best =
      measured_choice(*choices_of_process(), question_of(key, stream.device), names, [&] {
        const auto ms = measured_ms(
            offers.size(),
            [&](size_t i) {
              return whole->execute_plan_at_index(handle, pointers, workspace, offers[i].index)
                  .is_good();
            },
            kRounds, stream);
        debug(fmt::format("attention: plan {} of {}, {:.4f} ms; the first {:.4f} ms; {}",
                          fastest(ms), ms.size(), ms[fastest(ms)], ms.front(), text_of(key)));
        return ms;
      });
  if (best == 0) return plan;
  return {whole, offers[best].index, first.workspace_bytes, true};
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
  const Plan& plan(const CudnnKey& key, Stream stream) {
    const std::lock_guard lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return *found->second;
    const Plan& made = kept_.emplace_back(make_plan(key, handle_locked(stream), stream.device));
    plans_.emplace(key, &made);
    return made;
  }

  // A plan of the key that is final, if the call may search. The operands are those of the call; a
  // search writes to its results. Not locked while it waits for the device: work that is queued may
  // wait for another thread.
  const Plan& final_plan(const CudnnKey& key, const Plan& plan, const CudnnPointers& pointers,
                         void* workspace, Stream stream) {
    if (plan.is_final || !may_search(stream)) return plan;
    Plan found = searched_plan(key, plan, pointers, workspace, handle(stream), stream);
    const std::lock_guard lock(mutex_);
    const Plan*& place = plans_[key];
    if (!place->is_final) place = &kept_.emplace_back(std::move(found));
    return *place;
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
  std::unordered_map<CudnnKey, const Plan*, KeyHash> plans_;
  std::deque<Plan> kept_;  // for ever: a recorded graph may use the code of a plan
  std::unordered_map<void*, cudnnHandle_t> handles_;
};

}  // namespace

bool has_cudnn_library() {
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

std::optional<int64_t> planned_workspace_bytes(const CudnnKey& key, Stream stream) {
  const Plan& plan = Plans::of(stream.device).plan(key, stream);
  if (plan.graph == nullptr) return std::nullopt;
  return plan.workspace_bytes;
}

bool run_planned(const CudnnKey& key, CudnnPointers pointers, void* workspace, Stream stream) {
  Plans& plans = Plans::of(stream.device);
  const Plan& first = plans.plan(key, stream);
  if (first.graph == nullptr) return false;
  const Plan& plan = plans.final_plan(key, first, pointers, workspace, stream);
  auto status =
      plan.graph->execute_plan_at_index(plans.handle(stream), pointers, workspace, plan.index);
  if (status.is_bad()) {
    throw DeviceError(fmt::format("attention: cuDNN failed: {}", status.get_message()));
  }
  return true;
}

}  // namespace megatron::kernels::cuda
