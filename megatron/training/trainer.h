#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "megatron/device/readback.h"
#include "megatron/training/curriculum.h"
#include "megatron/training/loss_sums.h"
#include "megatron/training/microbatch_graph.h"
#include "megatron/training/profile_window.h"
#include "megatron/training/progress.h"
#include "megatron/training/progress_file.h"
#include "megatron/training/run_config.h"
#include "megatron/training/run_saver.h"
#include "megatron/training/signals.h"
#include "megatron/training/slow_notice.h"
#include "megatron/training/straggler_log.h"
#include "megatron/training/train_task.h"
#include "megatron/training/training_log.h"
#include "megatron/training/training_state.h"

namespace megatron {

struct TrainerOptions {
  RunSaver* saver = nullptr;        // null: no saving
  RunSaver* local_saver = nullptr;  // of --non-persistent-save-interval; null: none
  // Start of the process, from which --exit-duration-in-mins counts.
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  // True uses a MicrobatchGraph; empty: --cuda-graph and why_no_graph() decide.
  std::optional<bool> records_microbatches = {};
};

// A finished iteration and its results.
struct FinishedIteration {
  Progress progress;  // includes it
  IterationResult result;
};

// The training loop of Megatron-LM core_r0.5.0 (its order of update, evaluation, saving and exits).
//
// On a GPU the host runs ahead: it queues an iteration, and reads the losses and the norm of one
// iteration while the next one computes. An update depends on whether the previous one was skipped,
// so it first finishes the queued iteration; so do evaluation, saving and the end.
// On the CPU an iteration is finished when train_step() returns.
class Trainer {
 public:
  // `config` is resolved. All must outlive it.
  Trainer(const RunConfig& config, TrainTask& task, TrainingState& state,
          const TrainerOptions& options = {});

  // Trains to the last iteration, or to an exit condition, then saves and evaluates.
  // With --skip-train only the final evaluations run.
  void run();

  // The same in steps: begin(), iterate() until it returns false, end(). begin() returns false if
  // there is nothing to do, not even end().
  bool begin();
  // Trains one iteration, and logs, evaluates, saves and checks the exits as is due. False: it was
  // the last one, or there was none.
  bool iterate();
  void end();

  // Queues one iteration and counts it in TrainingState::progress; no log lines, evaluation or
  // saving. Waits for the previous iteration, never for this one. run() repeats it; `megatron
  // bench` times it. Throws Error if the losses or gradients of the previous iteration are not
  // finite: then the model is as before that iteration.
  void train_step();
  // Waits for the queued iteration, if there is one. Throws like train_step().
  void finish_step();
  // The last finished iteration; each is returned once.
  std::optional<FinishedIteration> take_finished();
  // Waits for the queued iteration and logs it: iterate() does so later. The last finished one.
  const std::optional<FinishedIteration>& settle();

  // Mean losses over eval_iters global batches, without log lines; empty if the time limit ended
  // it, and on ranks without the last stage.
  NamedValues evaluate(Split split);
  // The same over one global batch.
  NamedValues evaluate_step(Split split);

  // True if further microbatches are replayed (--cuda-graph).
  bool has_recorded_microbatch() const { return graph_ && graph_->is_recorded(); }

 private:
  // A queued iteration.
  struct QueuedIteration {
    FinishedIteration known;
    int64_t num_microbatches = 0;     // of this rank
    int64_t num_losses = 0;           // in the sums, over all data-parallel ranks
    bool is_trained = true;           // not one of --iterations-to-skip
    bool must_have_numbers = false;   // a NaN loss is an error
    std::vector<std::string> losses;  // names, in the order of loss_sums_
    size_t num_sums = 0;              // in loss_sums_
    Routers::Report of_experts;
  };

  // Runs this rank's microbatches through its stage of the pipeline; also backward if `seed`, the
  // gradient of each loss, is defined.
  LossSums run_microbatches(Split split, int64_t num_microbatches, const Tensor& seed);
  // The same for training, through graph_.
  LossSums train_through_graph(int64_t num_microbatches, const Tensor& seed);
  // The sum of all weights, on every stage; undefined without --calculate-per-token-loss.
  Tensor weight_of(const LossSums& losses) const;
  // Index of the first sample of this rank's microbatch in the current iteration.
  int64_t first_sequence_of(int64_t microbatch) const;
  // Tokens read by training so far.
  int64_t consumed_tokens(const Progress& progress) const;
  // Maximum over all ranks; true if it is true on one.
  int highest_on_ranks(int number) const;
  bool on_any_rank(bool condition) const;
  // Lower bound of an iteration's seconds on the CPU, from its operations; 0 on a GPU.
  double least_seconds() const;
  void log_finished();
  // --log-straggler, after the lines of an iteration. Every rank calls it.
  void report_stragglers();
  void prepare_evaluation();
  NamedValues evaluated_batch(Split split);
  // Mean losses over eval_iters global batches; none if the time limit ended it.
  std::optional<NamedValues> evaluate(Split split, bool is_verbose);
  // Evaluates each group of the split's data.
  void evaluate_and_print(Split split, const std::string& prefix, bool is_verbose);
  // False if the time limit ended it.
  bool evaluate_group(Split split, const std::string& name, const std::string& prefix,
                      bool is_verbose);
  // Evaluation, saving and exits after an iteration. True: leave the loop.
  bool finish_iteration();
  // --check-weight-hash-across-dp-replicas-interval.
  void compare_replicas();
  void save();
  void save_locally();
  // Completes a save under way, see RunSaver::finish().
  void finish_save(bool waits);
  void note_saved(const Progress& progress);
  bool is_out_of_time() const;
  // True if the file of --kill-switch-path exists on any rank.
  bool is_killed() const;

  const RunConfig& run_;
  const TrainingConfig& config_;
  TrainTask& task_;
  TrainingState& state_;
  const TrainerOptions options_;
  const int64_t train_iters_;
  const bool overlaps_microbatches_;
  TrainingLog log_;
  ProfileWindow profile_;                      // --profile
  std::optional<ProgressFile> progress_file_;  // --log-progress
  std::optional<MicrobatchGraph> graph_;       // --cuda-graph
  std::optional<Curriculum> curriculum_;
  std::optional<StragglerLog> stragglers_;  // --log-straggler
  int64_t stragglers_reported_ = 0;         // iteration
  std::optional<SlowNotice> notice_;        // while training, on the rank that writes the log
  int64_t last_saved_ = -1;                 // iteration
  int64_t last_evaluated_ = -1;             // iteration
  std::optional<Progress> saving_;          // the state in a save under way

  // The clock of "elapsed time per iteration", which stands still in evaluations and saves: the end
  // of the last one of these or of the last iteration, and of the queued iteration.
  Event began_;
  Event ended_;
  std::optional<QueuedIteration> queued_;
  std::optional<Readback> loss_sums_;
  std::optional<FinishedIteration> finished_;
  std::optional<FinishedIteration> logged_;  // the last one that log_finished() took
  std::optional<ExitSignals> signals_;       // --exit-signal-handler, between begin() and end()
  bool has_left_ = false;                    // by an exit condition
};

}  // namespace megatron
