#include "megatron/models/plan/traffic.h"

#include <algorithm>

#include "megatron/models/plan/planned_stage.h"
#include "megatron/parallel/context/ring_plan.h"
#include "megatron/parallel/expert_ranks.h"
#include "megatron/parallel/tensor/pieces.h"
#include "megatron/training/context_estimate.h"
#include "megatron/training/flops.h"

namespace megatron {
namespace {

// Bytes that a rank of a ring sends in a reduce-scatter or an all-gather.
int64_t part_of_ring(int64_t bytes, int64_t ranks) { return bytes / ranks * (ranks - 1); }

// Collectives of the residual stream, an all-reduce being two.
struct Collectives {
  double count = 0;
  double volume = 0;  // where one of params_dtype is 1

  void add(double times, const Collectives& other) {
    count += times * other.count;
    volume += times * other.volume;
  }
};

// Traffic of one microbatch. Two pairs of a column- and a row-parallel product: forward an
// all-gather and a reduce-scatter each, or an all-reduce; backward the same, and sequence
// parallelism gathers the inputs once more for the gradients of weights, but not in FP8, which may
// also gather in one byte.
//
// Cross-attention has another pair of products, and a third whose input is the encoder's output.
Collectives collectives_of_layers(const PlannedTraining& t, const StackPart& stack,
                                  bool only_exposed) {
  const ParallelConfig& p = t.parallel;
  const MicrobatchSizes sizes = microbatch_sizes(t);
  const Shape slice = {stack.config.seq_length / sizes.cp / sizes.tp, sizes.micro_batch_size,
                       stack.config.hidden_size};
  const Stream stream{Device{t.device, 0}};
  const Fp8Config& fp8 = stack.config.fp8;
  double forward = 4;
  double backward = p.sequence_parallel && !fp8.is_on() ? 6 : 4;
  if (only_exposed && p.sequence_parallel) {
    const bool by_pieces = p.tp_comm_overlap && !fp8.is_on() && worth_overlapping(slice, stream);
    forward = by_pieces ? 0 : 4;
    backward = by_pieces ? 0 : 2;
  } else if (only_exposed && p.async_tensor_model_parallel_allreduce) {
    backward = 0;
  }
  // Two gathers of each pass.
  const double spared = p.sequence_parallel && fp8.gathers_in_fp8()
                            ? 2 - 2.0 / static_cast<double>(size_of(stack.config.params_dtype))
                            : 0;
  Collectives of_forward{forward, forward - spared};
  Collectives of_backward{backward, backward - spared};
  Collectives all;
  const auto layers = static_cast<double>(stack.num_layers) -
                      static_cast<double>(stack.num_parts) / 2;  // one pair of products each
  const double more = stack.has_cross_attention ? 1.5 : 1;
  all.add(layers * more, of_forward);
  all.add(layers * (stack.has_cross_attention ? 2 : 1), of_backward);
  all.add(layers * recomputed_work(stack.config).mlp_passes / 2, of_forward);
  for (const LayerRegion& region : regions_of(stack.config, stack.num_layers)) {
    if (!region.is_recomputed) continue;
    const bool gathers_input = stack.config.distribute_saved_activations && !p.sequence_parallel;
    all.add(static_cast<double>(region.num_layers) * more, of_forward);
    if (gathers_input) all.add(1, {1, 1});
  }
  return all;
}

int64_t num_recomputed_layers(const PlannedStage& stage) {
  int64_t count = 0;
  for (const StackPart& stack : stage.stacks) {
    for (const LayerRegion& region : regions_of(stack.config, stack.num_layers)) {
      count += region.is_recomputed ? region.num_layers : 0;
    }
  }
  return count;
}

// The halves of chunks that a batch of a ring's messages sends or receives, the larger number.
int64_t num_halves(const std::vector<RingMessage>& batch) {
  int64_t sent = 0;
  int64_t received = 0;
  for (const RingMessage& message : batch) {
    (message.is_send ? sent : received) += message.num_chunks * message.num_halves;
  }
  return std::max(sent, received);
}

// The traffic of context-parallel attention in an iteration.
struct ContextTraffic {
  int64_t bytes = 0;
  std::vector<SentBeside> beside;  // part of them
};

ContextTraffic context_traffic(const PlannedTraining& t, const PlannedStage& stage) {
  const MicrobatchSizes sizes = microbatch_sizes(t);
  ContextTraffic sent;
  if (sizes.cp == 1) return sent;
  const TransformerConfig& c = t.transformer;
  const int64_t head = sizes.tokens(c) * c.kv_channels * size_of(c.params_dtype);
  const int64_t queries = c.num_attention_heads / sizes.tp * head;
  const int64_t block = 2 * c.query_groups_of_rank(sizes.tp) * head;  // a rank's keys and values
  const int64_t backward = stage.num_layers * t.num_microbatches;
  const int64_t forward = backward + num_recomputed_layers(stage) * t.num_microbatches;
  const double again = static_cast<double>(forward) / static_cast<double>(backward);
  const int64_t ranks = sizes.cp / sizes.head_ranks;  // that do not exchange heads
  // Adds a transfer of one layer and microbatch that overlaps with a part of its attention.
  const auto add_forward = [&](int64_t bytes, double part) {
    sent.beside.push_back({static_cast<double>(forward * bytes), again * part, 0});
  };
  const auto add_backward = [&](int64_t bytes, double part) {
    sent.beside.push_back({static_cast<double>(backward * bytes), 0, part});
  };
  if (sizes.head_ranks > 1) {  // projections go, outputs come back
    const int64_t all = part_of_ring(2 * queries + block, sizes.head_ranks);
    sent.bytes = (forward + backward) * all;
    for (const int64_t part : {queries + block, queries}) {
      const int64_t half = part_of_ring(part, sizes.head_ranks) / 2;
      add_forward(half, 0.5);
      add_backward(half, 0.5);
    }
    if (ranks == 1) return sent;
  }
  // Keys and values reach all ranks forward and backward, and gradients their rank.
  sent.bytes += (forward + 2 * backward) * (ranks - 1) * block;
  if (sizes.exchange == ContextExchange::kAllGather) {
    // The second half, beside the attention of the first chunk, in which rank 0 has least work.
    const int64_t half = (ranks - 1) * block / 2;
    const double part = 0.25 / static_cast<double>(ranks);
    add_forward(half, part);
    add_backward(half, part);
    return sent;
  }
  // The steps of rank 0, to which both chunks of every other rank come.
  const bool by_position = attends_by_position(c, false);
  const int64_t groups = c.query_groups_of_rank(sizes.tp) / sizes.head_ranks;
  const Ring ring{.size = static_cast<int>(ranks),
                  .by_position = by_position,
                  .halves_last_block = halves_last_ring_block(
                      c.seq_length / (2 * ranks), sizes.micro_batch_size,
                      c.num_attention_heads / sizes.tp / sizes.head_ranks, groups, by_position)};
  const auto add_steps = [&](const std::vector<RingStep>& steps, const auto& add) {
    for (size_t i = 0; i < steps.size(); ++i) {
      for (size_t j = 0; j < steps[i].batches.size(); ++j) {
        const bool is_late = j + steps[i].num_travelling >= steps[i].batches.size();
        const double pairs = num_pairs(steps[is_late ? i + 1 : i]);
        add(num_halves(steps[i].batches[j]) * block / 4, pairs / static_cast<double>(2 * ranks));
      }
    }
  };
  add_steps(forward_steps(ring), add_forward);
  add_steps(backward_steps(ring), add_backward);
  return sent;
}

// The traffic of expert-parallel ranks in an iteration. Forward and backward, tokens go to all
// ranks and sums come back; ranks with equal tokens add their sums instead.
int64_t expert_traffic(const PlannedTraining& t, const StackPart& stack, bool only_exposed) {
  const ParallelConfig& p = t.parallel;
  const MicrobatchSizes sizes = microbatch_sizes(t);
  const TransformerConfig& c = stack.config;
  const int64_t ranks = p.expert_model_parallel_size * expert_tensor_size(p);
  const bool has_equal_tokens = sizes.tp > 1 && !p.sequence_parallel;
  if (ranks == 1 || !c.has_experts()) return 0;
  int64_t with_experts = 0;
  for (int64_t layer = 0; layer < c.num_layers; ++layer)
    with_experts += c.has_experts(layer) ? 1 : 0;
  // Each stage has its share of them.
  const double layers =
      static_cast<double>(stack.num_layers * with_experts) / static_cast<double>(c.num_layers);
  const int64_t tokens = sizes.tokens(c) / (p.sequence_parallel ? sizes.tp : 1);
  const int64_t bytes = tokens * c.hidden_size * size_of(c.params_dtype);
  const int64_t sent = has_equal_tokens ? part_of_ring(bytes, ranks) : bytes * (ranks - 1);
  const double forward = c.recomputes("moe") ? 4 : 2;  // gathers and sums
  double passes = forward + 2;
  const int64_t rows_of_expert = tokens * ranks * c.moe_router_topk / c.num_experts;
  const Stream stream{Device{t.device, 0}};
  if (only_exposed && !has_equal_tokens && cuts_tokens(rows_of_expert, stream)) {
    passes = forward / 2 + 0.5;
  }
  return static_cast<int64_t>(passes * layers * static_cast<double>(t.num_microbatches * sent));
}

// A bucket of gradients or parameters that holds `bytes` in all.
int64_t bucket_bytes(const PlannedTraining& t, int64_t bytes, int64_t num_parameters) {
  const int64_t size = std::min(num_parameters, bucket_size(t.parallel));
  return num_parameters == 0 ? 0 : bytes / num_parameters * size;
}

Traffic traffic_of(const PlannedTraining& t, int64_t stage, const DryIteration& dry,
                   bool only_exposed) {
  const TransformerConfig& c = t.transformer;
  const ParallelConfig& p = t.parallel;
  const PlannedStage held = stage_of(t, stage);
  Traffic sent;
  const int64_t instances = p.num_distributed_optimizer_instances;
  const int64_t dp = p.data_parallel_size * p.context_parallel_size / instances;
  const int64_t expert_dp =
      dp * p.tensor_model_parallel_size / (p.expert_model_parallel_size * expert_tensor_size(p));
  struct Bytes {
    int64_t dense, experts;  // of parameters in each
  };
  const auto waited_for = [&](int64_t bytes, bool is_hidden) {
    return only_exposed && is_hidden ? bucket_bytes(t, bytes, dry.num_trained) : bytes;
  };
  const auto data = [&](Bytes bytes, bool is_hidden) {
    return part_of_ring(waited_for(bytes.dense, is_hidden), dp) +
           part_of_ring(waited_for(bytes.experts, is_hidden), expert_dp);
  };
  const auto across_instances = [&](Bytes bytes, bool is_hidden) {
    return 2 * (part_of_ring(waited_for(bytes.dense, is_hidden) / dp, instances) +
                part_of_ring(waited_for(bytes.experts, is_hidden) / expert_dp, instances));
  };
  const MicrobatchSizes sizes = microbatch_sizes(t);
  const DType gradient_dtype =
      p.accumulate_allreduce_grads_in_fp32 ? DType::kFloat32 : c.params_dtype;
  const int64_t num_dense = dry.num_flat - dry.num_in_experts;
  const Bytes gradients{sizes.block(num_dense, gradient_dtype),
                        sizes.block(dry.num_in_experts, gradient_dtype)};
  const Bytes parameters{sizes.block(num_dense - dry.num_in_fp8, c.params_dtype) +
                             sizes.block(dry.num_in_fp8, DType::kFloat8E4M3),
                         sizes.block(dry.num_in_experts, c.params_dtype)};
  // ZeRO stages 2 and 3 sum the gradients of each microbatch, and stage 3 gathers the parameters
  // for each forward and each backward pass.
  const int64_t sums = t.divides_gradients() ? t.num_microbatches : 1;
  sent.data_parallel = sums * data(gradients, p.overlap_grad_reduce || t.divides_gradients());
  sent.across_instances =
      across_instances(gradients, p.overlap_grad_reduce && !t.divides_gradients());
  if (t.divides_parameters()) {
    sent.data_parallel += 2 * t.num_microbatches * data(parameters, true);
  } else {
    sent.data_parallel += p.use_distributed_optimizer ? data(parameters, p.overlap_param_gather)
                                                      : data(gradients, p.overlap_grad_reduce);
  }
  if (t.optimizer.optimizer == OptimizerKind::kMuon && num_shards(p) > 1) {
    // In fp32, a rank's elements to those that work on their matrices, and as many back.
    int64_t elements = 0;
    for (const LayerMatrix& matrix : dry.matrices) elements += matrix.shape.numel();
    elements /= num_shards(p);
    sent.data_parallel += 2 * part_of_ring(elements * size_of(DType::kFloat32), dp);
  }
  const auto hidden_of = [&](const StackPart& stack) {
    return sizes.tokens(stack.config) * c.hidden_size * size_of(c.params_dtype);
  };
  for (const StackPart& stack : held.stacks) {
    if (sizes.tp == 1) break;
    Collectives all;
    all.add(static_cast<double>(t.num_microbatches), collectives_of_layers(t, stack, only_exposed));
    sent.tensor_parallel += static_cast<int64_t>(
        all.volume * static_cast<double>(part_of_ring(hidden_of(stack), sizes.tp)));
    sent.transfers += static_cast<int64_t>(all.count);
  }
  for (const StackPart& stack : held.stacks) {
    sent.expert_parallel += expert_traffic(t, stack, only_exposed);
  }
  const ContextTraffic context = context_traffic(t, held);
  sent.context_parallel = context.bytes;
  if (only_exposed) {
    for (const SentBeside& beside : context.beside) {
      sent.context_parallel -= static_cast<int64_t>(beside.bytes);
    }
  }
  if (only_exposed && held.num_chunks > 1) return sent;
  const int64_t boundaries = (stage > 0 ? 1 : 0) + (stage < t.num_stages() - 1 ? 1 : 0);
  const StackPart& last = held.stacks.back();
  int64_t message = hidden_of(last);
  if (last.has_cross_attention) message += message / last.config.seq_length * c.seq_length;
  sent.pipeline_parallel = boundaries * held.num_chunks * t.num_microbatches *
                           (sizes.sequence_parallel ? message / sizes.tp : message);
  return sent;
}

}  // namespace

Traffic traffic(const PlannedTraining& training, int64_t stage, const DryIteration& dry) {
  return traffic_of(training, stage, dry, false);
}

Traffic exposed_traffic(const PlannedTraining& training, int64_t stage, const DryIteration& dry) {
  return traffic_of(training, stage, dry, true);
}

std::vector<SentBeside> sent_beside_attention(const PlannedTraining& training, int64_t stage) {
  return context_traffic(training, stage_of(training, stage)).beside;
}

}  // namespace megatron
