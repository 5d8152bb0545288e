#include "megatron/parallel/fp8_scaling.h"

#include <algorithm>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/device/allocator.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

template <class Part>
std::vector<const Part*> parts_of(const std::vector<const Module*>& chunks) {
  std::vector<const Part*> all;
  for (const Module* chunk : chunks) {
    const std::vector<const Part*> parts = modules_of<Part>(*chunk);
    all.insert(all.end(), parts.begin(), parts.end());
  }
  return all;
}

Tensor states_of(const std::vector<const Fp8Layer*>& layers, Stream stream) {
  std::vector<int64_t> addresses;
  for (const Fp8Layer* layer : layers) {
    for (Tensor buffer : {layer->scales(), layer->amax_history()}) {
      addresses.push_back(reinterpret_cast<int64_t>(buffer.view().data));
    }
  }
  const auto count = static_cast<int64_t>(layers.size());
  return tensor_of(addresses, {count, 2}).to(stream);
}

bool has_amax(const Tensor& history) {
  const Tensor on_host = history.to(Stream{});
  return std::ranges::any_of(on_host.span<float>(), [](float amax) { return amax != 0; });
}

}  // namespace

Fp8Scaling::Fp8Scaling(const std::vector<const Module*>& chunks, const Fp8Config& config,
                       const ParallelContext& parallel, Stream stream,
                       std::unique_ptr<Fp8Gather> gather)
    : config_(config),
      is_delayed_(config.recipe == Fp8Recipe::kDelayed),
      groups_({parallel.tensor.group, parallel.data}),
      stream_(stream),
      layers_(parts_of<Fp8Layer>(chunks)),
      experts_(parts_of<Fp8StackedWeight>(chunks)),
      gather_(std::move(gather)) {
  if (layers_.empty() || !is_delayed_) return;
  const MemoryScope scope(MemoryCategory::kParameters, "weights and scales in FP8");
  const auto count = static_cast<int64_t>(layers_.size());
  amax_ = zeros({count, kernels::kFp8Tensors}, DType::kFloat32, stream);
  states_ = states_of(layers_, stream);
  for (int64_t i = 0; i < count; ++i) {
    layers_[static_cast<size_t>(i)]->keep_amax_in(
        amax_.slice(i, 1).reshape({kernels::kFp8Tensors}));
  }
}

void Fp8Scaling::quantize_weights() {
  if (layers_.empty() && experts_.empty()) return;
  const TraceRange range("quantize_weights", stream_);
  for (const Fp8StackedWeight* weight : experts_) weight->quantize();
  if (layers_.empty()) return;
  if (is_delayed_ && !has_looked_for_history_) {
    has_looked_for_history_ = true;
    if (has_amax(layers_[0]->amax_history())) use_history();
  }
  for (const Fp8Layer* layer : layers_) {
    if (!layer->gathers_weight()) layer->quantize_weight();
  }
  if (gather_) gather_->start();
}

void Fp8Scaling::finish_iteration(int64_t iteration) {
  if (layers_.empty() || !is_delayed_) return;
  for (const comm::Group& group : groups_) {
    if (group.size() > 1) comm::all_reduce(amax_.view(), comm::Reduce::kMax, group, stream_);
  }
  const bool is_due = !has_history_ || (iteration + 1) % config_.interval == 0;
  kernels::Fp8Update update{
      .length = config_.amax_history_len,
      .position = iteration % config_.amax_history_len,
      .uses_maximum = config_.amax_compute_algo == Fp8AmaxAlgorithm::kMax,
      .changes_scales = is_due,
  };
  for (const Fp8Tensor which : {Fp8Tensor::kInput, Fp8Tensor::kWeight, Fp8Tensor::kGradient}) {
    update.largest[static_cast<size_t>(which)] = fp8_largest(config_, which);
  }
  kernels::fp8_update_scales(std::as_const(states_).view(), amax_.view(), update, stream_);
  use_history();
}

void Fp8Scaling::use_history() {
  has_history_ = true;
  for (const Fp8Layer* layer : layers_) layer->use_delayed_scales();
}

}  // namespace megatron
