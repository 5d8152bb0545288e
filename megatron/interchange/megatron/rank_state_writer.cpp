#include <algorithm>
#include <string>

#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/python_random.h"
#include "megatron/interchange/megatron/rank_file.h"

namespace megatron {
namespace {

Tensor bytes_tensor(const std::string& bytes) {
  Tensor y({static_cast<int64_t>(bytes.size())}, DType::kUInt8, Stream{});
  std::ranges::copy(bytes, static_cast<char*>(y.view().data));
  return y;
}

}  // namespace

void write_args(RankFile& file, const RankShard& shard) {
  PickleWriter& pickle = file.pickle();
  const CheckpointContents& contents = shard.contents();
  const MegatronLayout& layout = shard.layout();
  ArgMap args = contents.args;
  const int64_t layers = layers_in(contents);
  const int64_t chunks = layout.virtual_pipeline_model_parallel_size;
  const int64_t stages = layout.pipeline_model_parallel_size;
  args["num_layers"] = args["encoder_num_layers"] = layers;
  if (is_encoder_decoder(shard.kind())) {
    args["num_layers"] = args["encoder_num_layers"] = layers_in(contents, "encoder");
    args["decoder_num_layers"] = layers_in(contents, "decoder");
    args["pipeline_model_parallel_split_rank"] =
        shard.stages().split_rank() > 0 ? ArgValue(shard.stages().split_rank()) : ArgValue();
  }
  args["tensor_model_parallel_size"] = layout.tensor_model_parallel_size;
  args["pipeline_model_parallel_size"] = stages;
  args["transformer_pipeline_model_parallel_size"] = stages;
  args["virtual_pipeline_model_parallel_size"] = chunks > 1 ? ArgValue(chunks) : ArgValue();
  args["num_layers_per_virtual_pipeline_stage"] =
      chunks > 1 ? ArgValue(layers / (stages * chunks)) : ArgValue();
  args["world_size"] = layout.tensor_model_parallel_size * stages * layout.data_parallel_size;
  args["rank"] = shard.pipeline() * layout.tensor_model_parallel_size + shard.tensor();
  args["data_parallel_size"] = layout.data_parallel_size;
  args["context_parallel_size"] = int64_t{1};
  args["expert_model_parallel_size"] = int64_t{1};
  if (value_or<int64_t>(args, "num_experts", 0) > 0) {
    args["expert_tensor_parallel_size"] = layout.tensor_model_parallel_size;
  }
  args["use_distributed_optimizer"] = layout.use_distributed_optimizer;
  if (layout.use_distributed_optimizer) {
    args["accumulate_allreduce_grads_in_fp32"] = shard.grad_dtype() == DType::kFloat32;
  }
  if (layout.tensor_model_parallel_size == 1) args["sequence_parallel"] = false;
  args["params_dtype"] = shard.weights_dtype();
  args["fp16"] = shard.weights_dtype() == DType::kFloat16;
  args["bf16"] = shard.weights_dtype() == DType::kBFloat16;
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  args["padded_vocab_size"] = weights.at(kWordEmbeddings).shape[0];
  args["untie_embeddings_and_output_weights"] = weights.contains(kOutputWeights);
  args["use_mcore_models"] = is_core(layout.naming);
  const bool is_fused =
      layout.naming == MegatronNaming::kLegacyFused || layout.naming == MegatronNaming::kCoreFused;
  args["transformer_impl"] = std::string(is_fused ? "transformer_engine" : "local");
  args["iteration"] = contents.iteration;
  args["consumed_train_samples"] = contents.consumed_train_samples;
  args["consumed_valid_samples"] = contents.consumed_valid_samples;
  if (is_core(layout.naming) && args.contains("norm_epsilon")) {
    args["layernorm_epsilon"] = args["norm_epsilon"];  // later versions
  }
  pickle.begin_namespace();
  for (const auto& [name, value] : args) file.key(name), pickle.value(value);
  pickle.end_namespace();
}

void write_random_states(RankFile& file, const RankShard& shard) {
  PickleWriter& pickle = file.pickle();
  // Compat: the seeds of Megatron-LM's ranks.
  const auto seed = static_cast<uint64_t>(value_or<int64_t>(shard.contents().args, "seed", 1234) +
                                          100 * shard.pipeline());
  pickle.begin_list();
  pickle.begin_dict();
  file.key("random_rng_state"), pickle.begin_tuple();
  pickle.integer(3);
  pickle.begin_tuple();
  for (const uint32_t word : mt19937_words_of_array(static_cast<uint32_t>(seed))) {
    pickle.integer(word);
  }
  pickle.integer(624);
  pickle.end_tuple();
  pickle.none();
  pickle.end_tuple();
  file.key("np_rng_state"), pickle.begin_tuple();
  pickle.text("MT19937");
  pickle.uint32_array(mt19937_words(static_cast<uint32_t>(seed)));
  pickle.integer(624), pickle.integer(0), pickle.number(0.0);
  pickle.end_tuple();
  file.key("torch_rng_state"), file.constant(bytes_tensor(torch_random_state(seed)));
  file.key("cuda_rng_state"), file.constant(bytes_tensor(cuda_random_state(seed)));
  file.key("rng_tracker_states"), pickle.begin_dict();
  const auto rank = static_cast<uint64_t>(shard.tensor());
  file.key("data-parallel-rng"), file.constant(bytes_tensor(cuda_random_state(seed)));
  file.key("model-parallel-rng"),
      file.constant(bytes_tensor(cuda_random_state(seed + 2718 + rank)));
  file.key("expert-parallel-rng"),
      file.constant(bytes_tensor(cuda_random_state(seed + 1024 + rank)));
  pickle.end_dict();
  pickle.end_dict();
  pickle.end_list();
}

}  // namespace megatron
