#include "megatron/inference/stages.h"

#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/models/model.h"

namespace megatron {

Variable received_from_previous(const ParallelContext& parallel, const Shape& shape, DType dtype,
                                Stream stream) {
  const PipelineLinks& links = parallel.links;
  Tensor received(shape, dtype, stream);
  comm::recv(received.view(), 1 - links.from_previous.rank(), links.from_previous, stream);
  return Variable(std::move(received));
}

void send_to_next(const ParallelContext& parallel, const Variable& x) {
  if (parallel.is_last_stage()) return;
  const PipelineLinks& links = parallel.links;
  comm::send(x.data().view(), 1 - links.to_next.rank(), links.to_next, x.stream());
}

Variable received_activations(const ParallelContext& parallel, const TransformerConfig& config,
                              int64_t s, int64_t b, Stream stream) {
  if (parallel.is_first_stage()) return {};
  return received_from_previous(parallel, {s, b, config.hidden_size}, residual_dtype(config),
                                stream);
}

bool is_head_rank(const ParallelContext& parallel) {
  return parallel.is_last_stage() && parallel.tensor.rank() == 0;
}

void share_from_head(const ParallelContext& parallel, TensorView x) {
  const int head = parallel.tensor.size() * (parallel.pipeline.size() - 1);
  comm::broadcast(x, head, parallel.model, Stream{});
}

void share_from_head(const ParallelContext& parallel, Tensor& x) {
  share_from_head(parallel, x.view());
}

}  // namespace megatron
