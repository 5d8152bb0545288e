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
  // positions. Then losses are means over all positions, too, and tokens count alike in whichever
  // microbatch they are. Undefined: microbatches count alike.
  Tensor weight = {};
};

// The ranks, device and randomness of a model. The references are valid during the run.
struct ModelSite {
  const ParallelContext& parallel;  // the ranks that share the model
  Stream stream;                    // of the computing device
  RandomState& random;              // for dropout
};

// A model, its data and its loss: everything that a training run does not know by itself. A run
// calls the functions in the order of declaration, on every rank. Implement it to train another
// model, or derive from a model's task to change a part of it (examples/).
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
  // Is there data for the split?
  virtual bool has_split(Split split) const = 0;
  // The names of the parts of the split's data that are evaluated on their own. An empty name
  // stands for data that has no such parts.
  virtual std::vector<std::string> groups(Split /*split*/) const { return {""}; }
  // Lets get_batch() read this one of the split's groups; at first it reads the first.
  virtual void use_group(Split /*split*/, size_t /*group*/) {}

  // Following microbatches have sequences of so many tokens: every iteration of a run with a
  // curriculum begins with a call, and so does an evaluation. get_batch() shortens the sequences of
  // training itself, as the curriculum says for the iteration of their samples.
  virtual void use_sequence_length(int64_t /*length*/) {}

  // Reads a chunk's part of its next microbatch of the split, in the sampler's order, into host
  // memory, and checks everything that only the host can check. Throws the data's errors.
  virtual Microbatch get_batch(Split split, int64_t chunk) = 0;

  // Does MicrobatchOutput have a weight with --calculate-per-token-loss?
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

  // Called after every evaluation of a group with the mean losses, which only the ranks of the last
  // pipeline stage know. What it prints appears once, below the lines of the evaluation.
  virtual void evaluated(Split /*split*/, const Progress& /*progress*/,
                         const NamedValues& /*losses*/) {}

  // Does an epoch of the data end with this iteration? Then the run saves a checkpoint, if it saves
  // any, and calls epoch_ended() on every rank, when the iteration is finished and logged.
  virtual bool ends_epoch(const Progress& /*progress*/) const { return false; }
  virtual void epoch_ended(const Progress& /*progress*/) {}

  virtual int64_t tokens_per_sample() const = 0;
  // Rows of a batch that are one sample. Each draws dropout masks of its own.
  virtual int64_t sequences_per_sample() const { return 1; }
  // Model FLOPs of an iteration: forward and backward, without recomputation.
  virtual double flops(int64_t batch_size) const = 0;

  // Frees the model and ends the threads that read data. Called at the end of the run.
  virtual void close() {}

  // Records for checkpoints besides tensors and settings, by section: {"tokenizer", ...}.
  virtual std::map<std::string, ArgMap> recorded() const { return {}; }
};

}  // namespace megatron
