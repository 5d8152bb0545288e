#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/device/random.h"
#include "megatron/device/readback.h"
#include "megatron/optim/gradient_reduction.h"
#include "megatron/optim/optimizer.h"
#include "megatron/parallel/pipeline/executor.h"
#include "megatron/training/loss_sums.h"
#include "megatron/training/microbatch_calculator.h"
#include "megatron/training/microbatch_graph.h"
#include "megatron/training/profile_window.h"
#include "megatron/training/progress.h"
#include "megatron/training/progress_file.h"
#include "megatron/training/train_task.h"
#include "megatron/training/training_log.h"

namespace megatron {

// What the loop works on; owned by the program, alive as long as the Trainer.
struct TrainerParts {
  const TrainingConfig& config;  // resolved
  TrainTask& task;
  FlatParameters& parameters;
  Optimizer& optimizer;
  ParameterScheduler& scheduler;
  MicrobatchCalculator& microbatches;
  RandomState& random;
  Progress& progress;
  GradientReduction& gradients;
  const ParallelContext& parallel;
  Stream stream;                      // of the model
  bool records_microbatches = false;  // MicrobatchGraph; REQUIRES: no communication, one chunk
  int64_t num_chunks = 1;             // of the model, on this stage
  ActivationType activations = {};    // between chunks
  int64_t tokens_per_sample = 0;
  // Model FLOPs of an iteration of that many samples.
  std::function<double(int64_t batch_size)> flops;
  // Writes a checkpoint of everything above; null: --save was not given.
  std::function<void(const Progress&)> save;
  // Completes a checkpoint that save() has only begun, once all ranks have written, waiting for
  // that or not. True when it is the latest now. Null: save() returns when it is.
  std::function<bool(bool waits)> finish_save = {};
  int64_t save_interval = 0;                      // iterations; 0: only at the end
  std::string save_directory;                     // named in the log lines
  std::chrono::steady_clock::time_point started;  // of the process: --exit-duration-in-mins
};

// An iteration of which everything is known.
struct FinishedIteration {
  Progress progress;  // counts it
  IterationResult result;
};

// The training loop of Megatron-LM core_r0.5.0 (its order of update, evaluation, saving and exits).
//
// On a GPU the host runs ahead: it queues an iteration, and reads the losses and the norm of one
// iteration while the next one computes. Whatever must not run ahead (an update, which depends on
// whether the one before was skipped; evaluation, saving, leaving) finishes what is queued first.
// On the CPU an iteration is finished when train_step() returns.
class Trainer {
 public:
  explicit Trainer(TrainerParts parts);

  // Trains to the last iteration, or to an exit condition, then saves and evaluates.
  // With --skip-train only the final evaluations run.
  void run();

  // Queues one iteration and counts it in `progress`; no log lines, evaluation or saving. Waits for
  // the iteration before it, never for itself. What run() repeats and `megatron bench` times.
  // Throws Error when the losses or gradients of the iteration before are not finite: then the
  // model is as that iteration found it.
  void train_step();
  // Waits for the queued iteration, if there is one. Throws as train_step().
  void finish_step();
  // The iteration that was finished last, once.
  std::optional<FinishedIteration> take_finished();
  // Are microbatches replayed from here on (--cuda-graph)?
  bool has_recorded_microbatch() const { return graph_ && graph_->is_recorded(); }

 private:
  // An iteration whose numbers are on their way.
  struct QueuedIteration {
    FinishedIteration known;
    int64_t num_microbatches = 0;     // of this rank
    int64_t num_losses = 0;           // summed up: of all data-parallel ranks
    bool is_trained = true;           // not one of --iterations-to-skip
    bool must_have_numbers = false;   // a loss that is not a number is an error
    std::vector<std::string> losses;  // names, in the order of loss_sums_
  };

  // Runs the microbatches of this rank through its stage of the pipeline, backward too when `seed`,
  // the gradient of each loss, is defined.
  LossSums run_microbatches(Split split, int64_t num_microbatches, const Tensor& seed);
  // The same for training, through graph_.
  LossSums train_through_graph(int64_t num_microbatches, const Tensor& seed);
  // Number of the first sample of a microbatch of this rank in the running iteration.
  int64_t first_sample_of(int64_t microbatch) const;
  // What is the highest of a number on all ranks; true as soon as it is true on one.
  int highest_on_ranks(int number) const;
  bool on_any_rank(bool condition) const;
  // The loop. True: an exit condition ended it.
  bool train();
  // Finishes what is queued and writes its log lines.
  void settle();
  void log_finished();
  // Mean losses over eval_iters global batches. None when the time limit ended it.
  std::optional<NamedValues> evaluate(Split split, bool is_verbose);
  void evaluate_and_print(Split split, const std::string& prefix, bool is_verbose);
  // Evaluation, saving and exits that are due after an iteration. True: leave the loop.
  bool finish_iteration();
  void save();
  // Completes a save under way, see TrainerParts::finish_save.
  void finish_save(bool waits);
  void note_saved(const Progress& progress);
  bool is_out_of_time() const;

  TrainerParts parts_;
  const int64_t train_iters_;
  TrainingLog log_;
  ProfileWindow profile_;                      // --profile
  std::optional<ProgressFile> progress_file_;  // --log-progress
  std::optional<MicrobatchGraph> graph_;       // --cuda-graph
  int64_t last_saved_ = -1;                    // iteration
  std::optional<Progress> saving_;             // of a save under way

  std::optional<QueuedIteration> queued_;
  std::optional<Readback> loss_sums_;
  std::optional<FinishedIteration> finished_;
};

}  // namespace megatron
