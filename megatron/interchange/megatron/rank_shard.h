#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/torch_writer.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/parameter_table.h"
#include "megatron/interchange/megatron/stages.h"
#include "megatron/interchange/megatron/writer.h"
#include "megatron/interchange/model_kind.h"

namespace megatron {

// One rank's part of a checkpoint: its parameters in Megatron-LM's order of registration, and its
// shards of their tensors.
class RankShard {
 public:
  using Chunk = std::vector<RankParameter>;  // of a stage of the pipeline

  // Keeps references to both. `divides_experts`: chunks have a parameter for each expert.
  RankShard(const CheckpointContents& contents, const MegatronLayout& layout, int64_t tensor,
            int64_t pipeline, bool divides_experts = true);

  // The ranks that experts are divided among, and one of them.
  struct ExpertPlace {
    int64_t expert = 0, expert_ranks = 1;  // with other experts each
    int64_t share = 0, share_ranks = 1;    // that share an expert
  };
  // The parameters of a rank's experts in the order of registration, from tensors of all experts in
  // layers that follow each other. is_grouped: a matrix of all experts, then the next one.
  Chunk experts_of(const Chunk& tensors, const ExpertPlace& place, bool is_grouped) const;

  const CheckpointContents& contents() const { return contents_; }
  const MegatronLayout& layout() const { return layout_; }
  int64_t tensor() const { return tensor_; }
  int64_t pipeline() const { return pipeline_; }
  ModelKind kind() const { return kind_; }
  const MegatronStages& stages() const { return stages_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  // Parameters of a chunk, without its buffers.
  Chunk trained(size_t chunk) const;
  bool is_last(size_t chunk) const {
    return stages_.is_last({pipeline_, static_cast<int64_t>(chunk)});
  }
  // Parameters as the optimizer numbers them: those with weight decay, then those without; no
  // buffers.
  std::array<std::vector<const RankParameter*>, 2> groups() const;

  DType weights_dtype() const { return weights_dtype_; }  // of most weights: the embedding's
  DType dtype_of(const RankParameter& parameter) const {
    return layout_.params_dtype.value_or(weights_.at(parameter.ours).dtype);
  }
  DType grad_dtype() const;
  bool has_optimizer() const;
  // True if the optimizer's state is in a separate file, in flat buffers.
  bool is_distributed() const { return has_optimizer() && layout_.use_distributed_optimizer; }

  // A number of the contents' scalars, 0 if it is missing.
  double scalar(const char* owner, const char* name) const;

  // The rank's elements of a section's tensor for a parameter.
  FileElements elements(const char* section, const RankParameter& parameter) const;

 private:
  Chunk chunk_of(int64_t chunk) const;
  // Replaces tensors of all experts by those of each.
  void divide_experts(Chunk& chunk) const;

  const CheckpointContents& contents_;
  const MegatronLayout& layout_;
  const StoredSection& weights_;
  int64_t tensor_;
  int64_t pipeline_;
  ModelKind kind_;
  ParameterTable table_;
  MegatronStages stages_;
  std::set<int64_t> attending_layers_;  // of a Retro
  DType weights_dtype_ = DType::kFloat32;
  std::vector<Chunk> chunks_;
};

// The name of the weights that embed tokens, and of those of an untied head.
inline constexpr const char* kWordEmbeddings = "embedding.word_embeddings.weight";
inline constexpr const char* kOutputWeights = "output_layer.weight";

}  // namespace megatron
