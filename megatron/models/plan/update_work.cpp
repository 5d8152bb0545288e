#include "megatron/models/plan/update_work.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "megatron/kernels/optimizer.h"
#include "megatron/optim/muon.h"
#include "megatron/optim/update_rule.h"

namespace megatron {
namespace {

// The sizes of an element of a rank's tensors, in bytes.
struct Bytes {
  explicit Bytes(const PlannedTraining& t) {
    const OptimizerConfig& o = t.optimizer;
    const DType params_dtype = t.transformer.params_dtype;
    const auto of = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
    grad = of(t.parallel.accumulate_allreduce_grads_in_fp32 ? DType::kFloat32 : params_dtype);
    param = of(params_dtype);
    const bool has_remainders = keeps_remainders(o, params_dtype);
    const DType narrow = main_dtype(o, params_dtype);
    main = of(has_remainders ? DType::kInt16 : narrow);
    joined = has_remainders ? param : 0;
    rounded = params_dtype != narrow || o.optimizer_cpu_offload ? param : 0;
    const auto of_moment = [](DType dtype) {
      constexpr int64_t kMany = 1 << 20;
      return static_cast<double>(kernels::moment_bytes(kMany, dtype)) / kMany;
    };
    for (const StateSpec& spec : make_element_rule(o)->state()) state += of_moment(spec.dtype);
  }
  double grad;
  double param;
  double main;       // of main parameters
  double joined;     // read from the model with them
  double rounded;    // written to the model
  double state = 0;  // of the update rule

  // Reads the state and writes it.
  double update() const { return 2 * (main + state) + joined + rounded; }
};

// Besides products: the direction in fp32, and the matrix of the products in 16 bits or fp32.
double muon_bytes(const Bytes& b, const OptimizerConfig& o, bool is_split) {
  constexpr double kFp32 = 4;
  const double x = o.muon_fp32_matmul_prec == MuonPrecision::kHigh ? kFp32 : 2;
  const double momentum = b.grad + 3 * kFp32;
  const double normalize = 2 * kFp32 + x;
  const double steps = static_cast<double>(o.muon_num_ns_steps) * 2 * x;  // a x, before the product
  const double scale = x + kFp32 + 2 * kFp32;
  const double rows = is_split ? 4 * kFp32 : 0;  // of queries, keys and values, out and back
  return b.grad + momentum + normalize + steps + scale + rows + 3 * kFp32 + b.rounded;
}

}  // namespace

UpdateWork update_work(const PlannedTraining& t, const DryIteration& dry) {
  const OptimizerConfig& o = t.optimizer;
  const Bytes b(t);
  const auto shards = static_cast<double>(num_shards(t.parallel));
  const auto numel = static_cast<double>(dry.num_trained);
  UpdateWork work;
  double matrices = 0;  // elements that Muon updates
  if (o.optimizer == OptimizerKind::kMuon) {
    double flops = 0;
    double largest = 0;  // one rank works on a whole matrix
    for (const auto& [local, row_parts] : dry.matrices) {
      const double elements = static_cast<double>(local.numel());
      std::vector<int64_t> parts = {local[0]};
      const bool is_split = o.muon_split_qkv && !row_parts.empty();
      if (is_split) parts = row_parts;
      const int64_t groups = local[0] / std::accumulate(parts.begin(), parts.end(), int64_t{0});
      double of_matrix = 0;
      for (const int64_t rows : parts) {
        of_matrix += newton_schulz_flops(groups * rows, local[1], o.muon_num_ns_steps);
      }
      flops += of_matrix;
      largest = std::max(largest, of_matrix);
      matrices += elements;
      work.device_bytes += elements / shards * muon_bytes(b, o, is_split);
    }
    (o.muon_fp32_matmul_prec == MuonPrecision::kHigh ? work.fp32_flops : work.bf16_flops) =
        std::max(flops / shards, largest);
  }
  const double others = (numel - matrices) / shards;
  const double measured = b.grad;  // for the norm
  if (o.optimizer_cpu_offload) {
    work.device_bytes += others * (measured + b.grad + b.param);
    work.host_bytes = others * (b.grad + b.update());
    work.bus_bytes = others * (b.grad + b.param);
  } else {
    work.device_bytes += others * (measured + b.grad + b.update());
  }
  return work;
}

}  // namespace megatron
