#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/core/arg_map.h"
#include "megatron/data/split.h"
#include "megatron/device/random.h"
#include "megatron/nn/module.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/parallel/pipeline/executor.h"
#include "megatron/training/console_log.h"
#include "megatron/training/microbatch.h"
#include "megatron/training/progress.h"

namespace megatron {

// Result of a chunk's forward pass on a microbatch. Training minimizes the sum of all losses of all
// chunks.
struct MicrobatchOutput {
  // For the next chunk, as declared by the boundary; empty on the last chunk of the model.
  Activations activations = {};
  // Losses to differentiate, each fp32 [] and a mean over the counted tokens: the model's loss on
  // its last chunk, an auxiliary loss on the chunk that computes it.
  std::vector<Variable> losses = {};
  // On the last chunk: "lm loss", ..., fp32 []. The same names in every microbatch.
  std::vector<std::pair<std::string, Tensor>> logged = {};
  // On the last chunk with --calculate-per-token-loss, fp32 []: the mean of the loss mask over all
  // positions. Then losses are means over all positions, too, and all tokens have equal weight, in
  // any microbatch. Undefined: microbatches have equal weight.
  Tensor weight = {};
};

// The ranks, device and randomness of a model. The references are valid during the run.
struct ModelSite {
  const ParallelContext& parallel;  // the ranks that share the model
  Stream stream;                    // of the computing device
  RandomState& random;              // for dropout
};

// A model, its data and its loss: the part of a training run that depends on the model. A run calls
// the functions in the order of declaration, on every rank. Implement it to train another model, or
// derive from a model's task to change a part of it (examples/).
class TrainTask {
 public:
  virtual ~TrainTask() = default;

  // "GPT", for log lines.
  virtual std::string_view model_name() const = 0;

  // Builds this rank's chunks of the model, in the order of the layers, with undefined parameters:
  // one chunk, or several in an interleaved pipeline. The task owns them.
  virtual std::vector<const Module*> build_model(const ModelSite& site) = 0;
  // Changes the optimizer's treatment of a parameter: weight decay, learning rate.
  virtual void adjust_parameter(OptimizedParameter& /*parameter*/) const {}
  // The inputs and outputs of each of this rank's chunks in the pipeline.
  virtual std::vector<ChunkBoundary> boundaries() const = 0;

  // Opens the data at the run's consumed samples. Throws the data's errors.
  virtual void open_data(const Progress& progress) = 0;
  // True if there is data for the split.
  virtual bool has_split(Split split) const = 0;
  // The names of the groups of the split's data, which are evaluated separately. One empty name
  // stands for data without groups.
  virtual std::vector<std::string> groups(Split /*split*/) const { return {""}; }
  // Selects the group of the split that get_batch() reads; initially the first.
  virtual void use_group(Split /*split*/, size_t /*group*/) {}

  // Sets the sequence length of the following microbatches, in tokens: called before every
  // iteration of a run with a curriculum, and before an evaluation. get_batch() shortens the
  // sequences of training itself, as the curriculum says for the iteration of their samples.
  virtual void use_sequence_length(int64_t /*length*/) {}

  // Reads a chunk's part of its next microbatch of the split, in the sampler's order, into host
  // memory, and checks everything that only the host can check. Throws the data's errors.
  virtual Microbatch get_batch(Split split, int64_t chunk) = 0;

  // True if MicrobatchOutput has a weight with --calculate-per-token-loss.
  virtual bool weighs_tokens() const { return false; }

  // `seed` [] fp32, on the model's device, is the gradient with which the backward passes of the
  // next microbatches start at each loss; undefined if there are none. So a task may compute
  // gradients in the forward pass (vocabulary_loss()).
  virtual void use_loss_seed(const Tensor& /*seed*/) {}

  // Runs a chunk on such a microbatch after its copy to the model's device; in grad mode if a
  // backward pass follows. `activations` come from the previous chunk; the model's first chunk has
  // none.
  //
  // The work must be the same for every microbatch of equal shapes: on a GPU the run may call this
  // for one microbatch and repeat its kernels for others, whose tensors it copies to the same
  // memory (--cuda-graph).
  virtual MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                        std::span<const Variable> activations) = 0;

  // True if the run may call get_batch() and forward_step() for another microbatch while a
  // collective of the one before is under way, on another stack of the thread
  // (--overlap-microbatches). Then both keep what they need of a microbatch in its tensors, not in
  // members of the task.
  virtual bool may_overlap_microbatches() const { return false; }

  // Called after every evaluation of a group with the mean losses, which only the ranks of the last
  // pipeline stage know. Its output appears once, below the lines of the evaluation.
  virtual void evaluated(Split /*split*/, const Progress& /*progress*/,
                         const NamedValues& /*losses*/) {}

  // True if this iteration is the last of an epoch. Then the run saves a checkpoint, if it saves
  // any, and calls epoch_ended() on every rank, after the iteration is finished and logged.
  virtual bool ends_epoch(const Progress& /*progress*/) const { return false; }
  virtual void epoch_ended(const Progress& /*progress*/) {}

  virtual int64_t tokens_per_sample() const = 0;
  // Rows of a batch that belong to one sample. Each has its own dropout masks.
  virtual int64_t sequences_per_sample() const { return 1; }
  // Model FLOPs of an iteration: forward and backward, without recomputation.
  virtual double flops(int64_t batch_size) const = 0;

  // Frees the model and ends the threads that read data. Called at the end of the run.
  virtual void close() {}

  // Records for checkpoints besides tensors and settings, by section: {"tokenizer", ...}.
  virtual std::map<std::string, ArgMap> recorded() const { return {}; }
};

}  // namespace megatron
