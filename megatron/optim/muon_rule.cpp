#include <optional>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/kernels/muon.h"
#include "megatron/optim/muon.h"
#include "megatron/optim/shared_matrices.h"
#include "megatron/optim/update_rule.h"

namespace megatron {
namespace {

// The ranks that have the shares of a bucket work on whole matrices together.
class MuonRule final : public UpdateRule {
 public:
  MuonRule(const OptimizerConfig& config, const MatrixShare& share, Stream stream)
      : config_(config), span_(share.span) {
    const std::vector<int32_t> group_of = group_of_parameter(share.groups, share.parameters.size());
    std::vector<SharedMatrix> shared;
    for (MuonMatrix& matrix :
         muon_matrices(share.buffer, share.parameters, config.muon_split_qkv, stream)) {
      if (matrix.span.begin < share.bucket.begin || matrix.span.begin >= share.bucket.end) continue;
      shared.push_back({matrix.span, matrix.flops(config.muon_num_ns_steps)});
      group_of_matrix_.push_back(static_cast<size_t>(group_of[matrix.parameter]));
      matrices_.push_back(std::move(matrix));
    }
    shared_.emplace(std::move(shared), share.bucket, share.buffer.sharers, stream);
  }

  std::vector<StateSpec> state() const override { return {{.name = "momentum_buffer"}}; }
  bool takes_remainders() const override { return false; }

  void update(const RuleInput& in, Stream stream) const override {
    const TensorView momentum_buffer = in.state[0].moment().elements;
    shared_->run(
        [&](size_t matrix, const FlatSpan& piece, Tensor direction) {
          kernels::muon_momentum(direction.view(), part(momentum_buffer, matrix, piece),
                                 part(in.grad, matrix, piece), config_.muon_momentum,
                                 config_.muon_use_nesterov, in.decision, stream);
        },
        [&](size_t matrix, const Tensor& direction) {
          make_orthogonal(matrices_[matrix], direction, config_);
        },
        [&](size_t matrix, const FlatSpan& piece, const Tensor& direction) {
          const ParameterGroup& group = in.groups[group_of_matrix_[matrix]];
          kernels::muon_update(part(in.model, matrix, piece), part(in.main, matrix, piece),
                               direction.view(), group.learning_rate(in.rates),
                               group.weight_decay(in.rates), in.decision, stream);
        });
  }

 private:
  // A piece of a matrix in one of the share's flat tensors; null of a null one.
  template <class View>
  View part(View flat, size_t matrix, const FlatSpan& piece) const {
    if (flat.data == nullptr) return flat;
    const int64_t begin = matrices_[matrix].span.begin + piece.begin - span_.begin;
    using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
    flat.data = static_cast<Byte*>(flat.data) + begin * size_of(flat.dtype);
    flat.shape = {piece.size()};
    return flat;
  }

  const OptimizerConfig config_;
  const FlatSpan span_;
  std::vector<MuonMatrix> matrices_;
  std::vector<size_t> group_of_matrix_;  // parallel to matrices_
  std::optional<SharedMatrices> shared_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon_rule(const OptimizerConfig& config, const MatrixShare& share,
                                           Stream stream) {
  return std::make_unique<MuonRule>(config, share, stream);
}

}  // namespace megatron
