#include "megatron/inference/stages.h"

#include <utility>

#include "megatron/comm/collectives.h"

namespace megatron {

Variable received_activations(const ParallelContext& parallel, const TransformerConfig& config,
                              int64_t s, int64_t b, Stream stream) {
  if (parallel.is_first_stage()) return {};
  const PipelineLinks& links = parallel.links;
  Tensor received({s, b, config.hidden_size},
                  config.fp32_residual_connection ? DType::kFloat32 : config.params_dtype, stream);
  comm::recv(received.view(), 1 - links.from_previous.rank(), links.from_previous, stream);
  return Variable(std::move(received));
}

void send_activations(const ParallelContext& parallel, const Variable& activations) {
  if (parallel.is_last_stage()) return;
  const PipelineLinks& links = parallel.links;
  comm::send(activations.data().view(), 1 - links.to_next.rank(), links.to_next,
             activations.stream());
}

bool is_head_rank(const ParallelContext& parallel) {
  return parallel.is_last_stage() && parallel.tensor.rank() == 0;
}

void share_from_head(const ParallelContext& parallel, Tensor& x) {
  const int head = parallel.tensor.size() * (parallel.pipeline.size() - 1);
  comm::broadcast(x.view(), head, parallel.model, Stream{});
}

}  // namespace megatron
