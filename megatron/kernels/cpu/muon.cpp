#include "megatron/kernels/muon.h"

#include <algorithm>
#include <cmath>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {
namespace {

// The fewest elements that pay for another thread.
constexpr int64_t kMuonGrain = 16384;

const StepState& state_in(ConstView state) {
  return *reinterpret_cast<const StepState*>(state.as<uint8_t>());
}

}  // namespace

void muon_momentum(TensorView direction, TensorView buffer, ConstView grad, double momentum,
                   bool is_nesterov, ConstView state, Stream) {
  const StepState& step = state_in(state);
  const auto scale = static_cast<float>(step.grad_scale);
  const auto keep = static_cast<float>(momentum);
  const auto rest = static_cast<float>(1.0 - momentum);
  float* y = direction.as<float>();
  float* buf = buffer.as<float>();
  dispatch_floating(grad.dtype, "muon_momentum", [&]<class G>() {
    const G* g = grad.as<G>();
    parallel_for(direction.numel(), kMuonGrain, [&](int64_t first, int64_t last) {
      if (step.is_skipped != 0) {
        std::copy(buf + first, buf + last, y + first);
        return;
      }
      for (int64_t i = first; i < last; ++i) {
        const float gi = rest * scale * static_cast<float>(g[i]);
        buf[i] = keep * buf[i] + gi;
        y[i] = is_nesterov ? keep * buf[i] + gi : buf[i];
      }
    });
  });
}

void muon_normalize(TensorView y, ConstView x, ConstView measured, Stream) {
  const double norm = std::sqrt(measured.as<double>()[0]);
  const auto factor = static_cast<float>(1.0 / std::max(norm, kSmallestMuonNorm));
  const float* in = x.as<float>();
  dispatch_floating(y.dtype, "muon_normalize", [&]<class T>() {
    T* out = y.as<T>();
    parallel_for(y.numel(), kMuonGrain, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) out[i] = T(factor * in[i]);
    });
  });
}

void muon_update(TensorView model, TensorView main, ConstView direction, double lr,
                 double weight_decay, ConstView state, Stream) {
  if (state_in(state).is_skipped != 0) return;
  const auto rate = static_cast<float>(lr);
  const auto decay = static_cast<float>(weight_decay);
  float* w = main.as<float>();
  const float* d = direction.as<float>();
  dispatch_floating(model.is_null() ? DType::kFloat32 : model.dtype, "muon_update", [&]<class P>() {
    P* out = model.is_null() ? nullptr : model.as<P>();
    parallel_for(main.numel(), kMuonGrain, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) w[i] -= rate * (d[i] + decay * w[i]);
      if (out == nullptr) return;
      for (int64_t i = first; i < last; ++i) out[i] = P(w[i]);
    });
  });
}

}  // namespace megatron::kernels::cpu
