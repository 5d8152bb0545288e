#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

enum class DistributedBackend { kNccl, kGloo };

// Exchange of keys or queries between context-parallel ranks (context/attention.h).
enum class ContextExchange { kP2p, kAllGather, kAllToAll };

// The layout of a model and its data on the ranks. Names are Megatron's flag names.
struct ParallelConfig {
  int64_t world_size = 1;                    // all ranks; not a flag
  int64_t tensor_model_parallel_size = 1;    // tp
  int64_t pipeline_model_parallel_size = 1;  // pp
  int64_t context_parallel_size = 1;         // cp
  int64_t expert_model_parallel_size = 1;    // ep
  int64_t expert_tensor_parallel_size = 0;   // etp; 0: tp; not a flag
  int64_t data_parallel_size = 1;            // resolved: world_size / (tp * pp * cp); not a flag

  std::vector<std::string> cp_comm_type = {"p2p"};           // p2p, all_gather, a2a or a2a+p2p
  ContextExchange context_exchange = ContextExchange::kP2p;  // resolved: that type; not a flag
  // a2a+p2p: neighbours that exchange heads, then ranks in a ring. Resolved: empty without it.
  std::vector<int64_t> hierarchical_context_parallel_sizes = {};

  int64_t pipeline_model_parallel_split_rank = 0;     // first decoder stage of T5; 0: none
  int64_t num_layers_per_virtual_pipeline_stage = 0;  // 0: stages are not cut into chunks
  int64_t num_virtual_stages_per_pipeline_rank = 0;   // the same, given as vp; 0: not cut
  int64_t virtual_pipeline_model_parallel_size = 0;   // vp, set once the layers are known; 0: none
  int64_t microbatch_group_size_per_virtual_pipeline_stage = 0;  // 0: pp
  int64_t decoder_first_pipeline_num_layers = 0;         // layers of the first stage; 0: even split
  int64_t decoder_last_pipeline_num_layers = 0;          // layers of the last stage; 0: even split
  bool account_for_embedding_in_pipeline_split = false;  // the embedding counts as one layer
  bool account_for_loss_in_pipeline_split = false;       // the loss counts as one layer
  bool standalone_embedding_stage = false;               // the first stage holds only the embedding
  std::string pipeline_model_parallel_layout = {};  // parts of every stage, as Et|tt|tL; or empty
  bool overlap_p2p_comm = true;                     // resolved: false without virtual stages
  bool enable_zero_bubble = false;  // weight gradients fill the pipeline's bubble; schedule.h
  int64_t zero_bubble_max_pending_backward = 0;  // microbatches that a stage holds; 0: pp

  bool sequence_parallel = false;  // resolved: false when tp is 1
  bool async_tensor_model_parallel_allreduce = true;
  bool gradient_accumulation_fusion = true;
  bool tp_comm_overlap = false;
  bool overlap_microbatches = false;  // two take turns; pipeline/schedule.h
  bool use_tp_pp_dp_mapping = false;  // rank order tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp

  // ZeRO stage (Rajbhandari et al. 2020, arXiv:1910.02054): data-parallel ranks shard 0 nothing, 1
  // the optimizer's state, 2 gradients as well, 3 parameters as well.
  int64_t zero_stage = 0;                  // resolved: at least 1 with use_distributed_optimizer
  bool use_distributed_optimizer = false;  // resolved: zero_stage >= 1
  // Equal groups of consecutive data-parallel ranks. Each group shards all that the stage shards,
  // and the others have copies.
  int64_t num_distributed_optimizer_instances = 1;
  bool overlap_grad_reduce = false;
  bool delay_grad_reduce = true;
  bool overlap_param_gather = false;
  bool delay_param_gather = false;
  bool accumulate_allreduce_grads_in_fp32 = false;
  bool grad_reduce_in_bf16 = false;
  int64_t ddp_bucket_size = 0;  // elements; 0: max(40 000 000, 1 000 000 * dp)
  int64_t ddp_num_buckets = 0;  // 0: from ddp_bucket_size
  bool ddp_average_in_collective = false;

  DistributedBackend distributed_backend = DistributedBackend::kNccl;
  int64_t distributed_timeout_minutes = 10;
  int64_t distributed_timeout_seconds_after_init = 0;  // once training begins; 0: the one above
};

// Ranks that share each expert.
int64_t expert_tensor_size(const ParallelConfig& config);

// Neighbouring context-parallel ranks that exchange heads: all with a2a, the first of the
// hierarchical sizes with a2a+p2p, otherwise one.
int64_t head_exchange_size(const ParallelConfig& config);

// The ranks that divide the state of the optimizer for dense layers, those of an instance; 1 if
// none do.
int64_t num_shards(const ParallelConfig& config);

// Clamps tp and pp to the world, derives dp and context_exchange, and switches off what has no
// effect. Pure.
// Compat: Megatron-LM core_r0.5.0 clamps tp to min(tp, world) and pp to min(pp, world / tp).
ParallelConfig resolved(ParallelConfig config);

// Everything wrong with a resolved config, one sentence each; empty when it is valid.
std::vector<std::string> problems(const ParallelConfig& config);

// Minimum size of a gradient bucket, in elements: ddp_bucket_size, else 40 million or a million for
// each data-parallel rank, as Megatron-LM.
int64_t bucket_size(const ParallelConfig& config);

}  // namespace megatron
