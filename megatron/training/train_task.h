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
#include "megatron/training/progress.h"

namespace megatron {

// The tensors of a microbatch, in an order of the task's choice; undefined where there is nothing.
using Microbatch = std::vector<Tensor>;

// Result of a chunk's forward pass on a microbatch. Training minimizes the sum of all losses of all
// chunks.
struct MicrobatchOutput {
  // For the next chunk, as the boundary declares; empty on the last chunk of the model.
  Activations activations = {};
  // To differentiate, each fp32 [] and a mean over what counts: the model's loss on its last chunk,
  // an auxiliary loss on the chunk that computes it.
  std::vector<Variable> losses = {};
  // On the last chunk: "lm loss", ..., fp32 []. The same names in every microbatch.
  std::vector<std::pair<std::string, Tensor>> logged = {};
};

// Where a task builds its model. The references stay valid as long as the run.
struct ModelSite {
  const ParallelContext& parallel;  // the ranks that share the model
  Stream stream;                    // of the device that computes
  RandomState& random;              // dropout draws from it
};

// A model, its data and its loss: all that a training run does not know by itself. A run calls the
// functions in the order of their declaration; every rank calls the same ones. Implement it to
// train another model, or derive from a model's task to change a part of it (examples/).
class TrainTask {
 public:
  virtual ~TrainTask() = default;

  // "GPT": for log lines.
  virtual std::string_view model_name() const = 0;

  // Builds this rank's chunks of the model, in the order of the layers, with undefined parameters:
  // one chunk, or several in an interleaved pipeline. The task owns them.
  virtual std::vector<const Module*> build_model(const ModelSite& site) = 0;
  // Changes how the optimizer treats a parameter: weight decay, learning rate.
  virtual void adjust_parameter(OptimizedParameter& /*parameter*/) const {}
  // What each of this rank's chunks receives from the chunk before it and sends to the one after.
  virtual std::vector<ChunkBoundary> boundaries() const = 0;

  // Opens the data at the samples that the run has consumed. Throws what the data throws.
  virtual void open_data(const Progress& progress) = 0;
  // Is there data for the split?
  virtual bool has_split(Split split) const = 0;

  // Reads a chunk's part of its next microbatch of the split, in the order of the sampler, into
  // host memory, and checks all that only the host can check. Throws what the data throws.
  virtual Microbatch get_batch(Split split, int64_t chunk) = 0;

  // Runs a chunk on such a microbatch, which has been copied to the device of the model; in grad
  // mode when a backward pass follows. `activations` come from the chunk before; there are none
  // for the first chunk of the model.
  //
  // The work must be the same for every microbatch of equal shapes: on a GPU the run may call this
  // for one microbatch and repeat its kernels for others, whose tensors it puts into the same
  // places (--cuda-graph).
  virtual MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                        std::span<const Variable> activations) = 0;

  virtual int64_t tokens_per_sample() const = 0;
  // Model FLOPs of an iteration: forward and backward, without recomputation.
  virtual double flops(int64_t batch_size) const = 0;

  // Frees the model and ends the threads that read data. The run calls it when it ends.
  virtual void close() {}

  // What checkpoints record besides tensors and settings, by section: {"tokenizer", ...}.
  virtual std::map<std::string, ArgMap> recorded() const { return {}; }
};

}  // namespace megatron
