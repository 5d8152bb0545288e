#include "megatron/parallel/config.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megatron/parallel/pipeline/model_chunk.h"

namespace megatron {
namespace {

std::optional<ContextExchange> exchange_of(const std::vector<std::string>& type) {
  if (type == std::vector<std::string>{"p2p"}) return ContextExchange::kP2p;
  if (type == std::vector<std::string>{"all_gather"}) return ContextExchange::kAllGather;
  if (type == std::vector<std::string>{"a2a"}) return ContextExchange::kAllToAll;
  if (type == std::vector<std::string>{"a2a+p2p"}) return ContextExchange::kAllToAll;
  return std::nullopt;
}

bool wants_levels(const ParallelConfig& c) {
  return c.cp_comm_type == std::vector<std::string>{"a2a+p2p"};
}

bool has_levels(const ParallelConfig& c) {
  const std::vector<int64_t>& sizes = c.hierarchical_context_parallel_sizes;
  return sizes.size() == 2 && std::ranges::min(sizes) >= 1 &&
         sizes[0] * sizes[1] == c.context_parallel_size;
}

}  // namespace

ParallelConfig resolved(ParallelConfig config) {
  int64_t& tp = config.tensor_model_parallel_size;
  int64_t& pp = config.pipeline_model_parallel_size;
  tp = std::min(tp, config.world_size);
  if (tp >= 1) pp = std::min(pp, std::max<int64_t>(config.world_size / tp, 1));
  const int64_t model_ranks = tp * pp * config.context_parallel_size;
  if (model_ranks > 0) config.data_parallel_size = config.world_size / model_ranks;

  config.context_exchange = exchange_of(config.cp_comm_type).value_or(config.context_exchange);
  if (!wants_levels(config)) config.hierarchical_context_parallel_sizes.clear();

  const bool is_interleaved =
      config.num_layers_per_virtual_pipeline_stage > 0 || num_model_chunks(config, 0) > 1;
  if (!is_interleaved) config.overlap_p2p_comm = false;
  if (config.use_distributed_optimizer) {
    config.zero_stage = std::max<int64_t>(config.zero_stage, 1);
  }
  config.use_distributed_optimizer = config.zero_stage >= 1;
  if (tp == 1) config.sequence_parallel = false;
  const int64_t layer_ranks = tp * config.context_parallel_size * config.expert_model_parallel_size;
  if (pp > 1 || layer_ranks == 1) config.overlap_microbatches = false;
  if (config.sequence_parallel) config.async_tensor_model_parallel_allreduce = false;
  return config;
}

int64_t expert_tensor_size(const ParallelConfig& config) {
  return config.expert_tensor_parallel_size > 0 ? config.expert_tensor_parallel_size
                                                : config.tensor_model_parallel_size;
}

int64_t head_exchange_size(const ParallelConfig& config) {
  if (config.context_exchange != ContextExchange::kAllToAll) return 1;
  if (wants_levels(config) && !has_levels(config)) return 1;
  const std::vector<int64_t>& sizes = config.hierarchical_context_parallel_sizes;
  return sizes.empty() ? config.context_parallel_size : sizes[0];
}

int64_t num_shards(const ParallelConfig& config) {
  if (!config.use_distributed_optimizer) return 1;
  const int64_t instances =  // 0 is reported as a problem
      std::max<int64_t>(config.num_distributed_optimizer_instances, 1);
  return config.data_parallel_size * config.context_parallel_size / instances;
}

int64_t bucket_size(const ParallelConfig& config) {
  if (config.ddp_bucket_size > 0) return config.ddp_bucket_size;
  return std::max<int64_t>(40'000'000, 1'000'000 * config.data_parallel_size);
}

std::vector<std::string> problems(const ParallelConfig& c) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  const auto at_least_one = [&](int64_t value, const char* flag) {
    require(value >= 1, fmt::format("{} {} must be at least 1", flag, value));
    return value >= 1;
  };
  const bool has_sizes =
      static_cast<int>(at_least_one(c.tensor_model_parallel_size, "--tensor-model-parallel-size")) &
      static_cast<int>(
          at_least_one(c.pipeline_model_parallel_size, "--pipeline-model-parallel-size")) &
      static_cast<int>(at_least_one(c.context_parallel_size, "--context-parallel-size")) &
      static_cast<int>(at_least_one(c.expert_model_parallel_size, "--expert-model-parallel-size")) &
      static_cast<int>(at_least_one(c.num_distributed_optimizer_instances,
                                    "--num-distributed-optimizer-instances"));
  if (!has_sizes) return found;

  const std::vector<int64_t>& sizes = c.hierarchical_context_parallel_sizes;
  require(c.cp_comm_type.size() == 1,
          fmt::format("--cp-comm-type {}: a type for each layer is not supported; give one of p2p, "
                      "all_gather, a2a, a2a+p2p",
                      fmt::join(c.cp_comm_type, " ")));
  require(c.cp_comm_type.size() != 1 || exchange_of(c.cp_comm_type).has_value(),
          fmt::format("--cp-comm-type {} must be one of p2p, all_gather, a2a, a2a+p2p",
                      fmt::join(c.cp_comm_type, " ")));
  require(
      !wants_levels(c) || has_levels(c),
      fmt::format("--cp-comm-type a2a+p2p: --hierarchical-context-parallel-sizes {} must be two "
                  "sizes, of the ranks that exchange heads and of a ring, whose product is "
                  "--context-parallel-size {}",
                  sizes.empty() ? "(not given)" : fmt::format("{}", fmt::join(sizes, " ")),
                  c.context_parallel_size));

  const int64_t model_ranks =
      c.tensor_model_parallel_size * c.pipeline_model_parallel_size * c.context_parallel_size;
  require(c.world_size % model_ranks == 0,
          fmt::format("the number of ranks {} must be a multiple of tensor {} x pipeline {} x "
                      "context {} = {}; start {} ranks or change these sizes",
                      c.world_size, c.tensor_model_parallel_size, c.pipeline_model_parallel_size,
                      c.context_parallel_size, model_ranks,
                      (c.world_size + model_ranks - 1) / model_ranks * model_ranks));
  const int64_t expert_ranks = expert_tensor_size(c) * c.expert_model_parallel_size;
  const int64_t stage_ranks = c.world_size / c.pipeline_model_parallel_size;
  require(c.world_size % model_ranks != 0 || stage_ranks % expert_ranks == 0,
          fmt::format("--expert-model-parallel-size {} x --expert-tensor-parallel-size {} must "
                      "divide the {} ranks of a pipeline stage",
                      c.expert_model_parallel_size, expert_tensor_size(c), stage_ranks));
  // Else the stages of a pipeline of experts are other ranks than those of dense layers.
  require(!c.use_tp_pp_dp_mapping || c.pipeline_model_parallel_size == 1 ||
              expert_ranks == c.tensor_model_parallel_size * c.context_parallel_size,
          fmt::format("--use-tp-pp-dp-mapping needs --expert-model-parallel-size {} x "
                      "--expert-tensor-parallel-size {} to be tensor {} x context {}; leave it out",
                      c.expert_model_parallel_size, expert_tensor_size(c),
                      c.tensor_model_parallel_size, c.context_parallel_size));
  require(c.pipeline_model_parallel_size == 1 ||
              c.pipeline_model_parallel_split_rank < c.pipeline_model_parallel_size,
          fmt::format("--pipeline-model-parallel-split-rank {} must be below "
                      "--pipeline-model-parallel-size {}",
                      c.pipeline_model_parallel_split_rank, c.pipeline_model_parallel_size));
  const auto not_negative = [&](int64_t value, const char* flag) {
    require(value >= 0, fmt::format("{} {} must be greater than 0", flag, value));
  };
  const int64_t layers_a_chunk = c.num_layers_per_virtual_pipeline_stage;
  const int64_t chunks = c.num_virtual_stages_per_pipeline_rank;
  not_negative(layers_a_chunk, "--num-layers-per-virtual-pipeline-stage");
  not_negative(chunks, "--num-virtual-stages-per-pipeline-rank");
  require(layers_a_chunk == 0 || chunks == 0,
          "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank say "
          "the same thing; give one of them");
  if (layers_a_chunk > 0) {
    require(c.pipeline_model_parallel_size > 1,
            fmt::format("--num-layers-per-virtual-pipeline-stage needs "
                        "--pipeline-model-parallel-size above 1, not {}",
                        c.pipeline_model_parallel_size));
  }
  require(chunks <= 1 || c.pipeline_model_parallel_size > 1,
          fmt::format("--num-virtual-stages-per-pipeline-rank {} needs "
                      "--pipeline-model-parallel-size above 1",
                      chunks));
  require(c.zero_bubble_max_pending_backward == 0 ||
              c.zero_bubble_max_pending_backward >= c.pipeline_model_parallel_size,
          fmt::format("--zero-bubble-max-pending-backward {} must be at least "
                      "--pipeline-model-parallel-size {}",
                      c.zero_bubble_max_pending_backward, c.pipeline_model_parallel_size));
  not_negative(c.decoder_first_pipeline_num_layers, "--decoder-first-pipeline-num-layers");
  not_negative(c.decoder_last_pipeline_num_layers, "--decoder-last-pipeline-num-layers");
  const bool has_own_layers =
      c.decoder_first_pipeline_num_layers > 0 || c.decoder_last_pipeline_num_layers > 0;
  require(
      !has_own_layers ||
          !(c.account_for_embedding_in_pipeline_split || c.account_for_loss_in_pipeline_split),
      "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers exclude "
      "--account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split; keep "
      "one way to divide the layers");
  require(
      c.pipeline_model_parallel_layout.empty() ||
          !(has_own_layers || layers_a_chunk > 0 || chunks > 0 || c.standalone_embedding_stage ||
            c.account_for_embedding_in_pipeline_split || c.account_for_loss_in_pipeline_split),
      fmt::format("--pipeline-model-parallel-layout {} already gives the layers of every stage; "
                  "remove --num-layers-per-virtual-pipeline-stage, "
                  "--num-virtual-stages-per-pipeline-rank, --decoder-...-pipeline-num-layers, "
                  "--account-for-...-in-pipeline-split and --standalone-embedding-stage",
                  c.pipeline_model_parallel_layout));
  require(c.zero_stage >= 0 && c.zero_stage <= 3,
          fmt::format("--zero-stage {} must be 0, 1, 2 or 3", c.zero_stage));
  // A pipeline holds the gradients of several microbatches; as DeepSpeed.
  require(c.zero_stage < 2 || c.pipeline_model_parallel_size == 1,
          fmt::format("--zero-stage {} excludes --pipeline-model-parallel-size {}, because a "
                      "pipeline needs its gradients from the first to the last microbatch; use "
                      "--zero-stage 1",
                      c.zero_stage, c.pipeline_model_parallel_size));
  const int64_t instances = c.num_distributed_optimizer_instances;
  require(instances == 1 || c.use_distributed_optimizer,
          fmt::format("--num-distributed-optimizer-instances {} needs "
                      "--use-distributed-optimizer; add it",
                      instances));
  const bool has_even_instances = c.data_parallel_size % instances == 0;
  require(has_even_instances,
          fmt::format("--num-distributed-optimizer-instances {} must divide the {} data-parallel "
                      "ranks",
                      instances, c.data_parallel_size));
  require(!has_even_instances || stage_ranks % expert_ranks != 0 ||
              stage_ranks / expert_ranks % instances == 0,
          fmt::format("--num-distributed-optimizer-instances {} must divide the {} ranks that have "
                      "the same experts; change --expert-model-parallel-size {}",
                      instances, stage_ranks / expert_ranks, c.expert_model_parallel_size));
  if (c.overlap_param_gather) {
    require(c.use_distributed_optimizer,
            "--overlap-param-gather needs --use-distributed-optimizer; add it");
    require(c.overlap_grad_reduce || c.zero_stage >= 2,
            "--overlap-param-gather needs --overlap-grad-reduce; add it");
  }
  require(c.ddp_bucket_size >= 0,
          fmt::format("--ddp-bucket-size {} must be greater than 0", c.ddp_bucket_size));
  require(c.distributed_timeout_minutes > 0,
          fmt::format("--distributed-timeout-minutes {} must be greater than 0",
                      c.distributed_timeout_minutes));
  require(c.distributed_timeout_seconds_after_init >= 0,
          fmt::format("--distributed-timeout-seconds-after-init {} must be greater than 0",
                      c.distributed_timeout_seconds_after_init));
  return found;
}

}  // namespace megatron
