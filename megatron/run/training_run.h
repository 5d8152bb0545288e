#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "megatron/checkpoint/local_checkpoints.h"
#include "megatron/comm/group.h"
#include "megatron/device/stream.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/run/prepared_run.h"
#include "megatron/run/start.h"
#include "megatron/training/run_config.h"
#include "megatron/training/run_saver.h"
#include "megatron/training/timers.h"
#include "megatron/training/train_task.h"
#include "megatron/training/training_state.h"

namespace megatron {

class Trainer;

// A training run: builds the model of a task and all that trains it, loads and saves checkpoints,
// and trains to the end. It prints Megatron-LM's lines: rank 0 those of the start, the last rank
// those of the training.
//
//   RunConfig config = ...;                       // sizes, data, optimizer
//   config = resolved(config);                    // fills defaults, throws what is wrong
//   const auto tokenizer = open_tokenizer(config);
//   GptTask task(config, tokenizer);
//   TrainingRun run(config, task);
//   run.train();
class TrainingRun {
 public:
  using Clock = std::chrono::steady_clock;

  // `config` is resolved and the task has the same. Binds the calling thread to its device. Every
  // rank of `world` calls each function alike. The task must outlive the run. `started` is when the
  // process began, for --exit-duration-in-mins. The directory of --save belongs to the run while it
  // lives: `save_directory`, or else what prepare_save_directory() makes and throws.
  TrainingRun(const RunConfig& config, TrainTask& task, const comm::Group& world = {},
              Clock::time_point started = Clock::now(),
              std::shared_ptr<const SaveDirectory> save_directory = nullptr);
  TrainingRun(const PreparedRun& prepared, TrainTask& task, const comm::Group& world = {})
      : TrainingRun(prepared.args, task, world, prepared.started, prepared.save_directory) {}
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  // Continues from a checkpoint, or starts from the weights of a model. Throws ConfigError for
  // every setting that contradicts the source, FormatError for tensors that do not fit.
  void load(const CheckpointSource& source);
  // The same from --load, if that was given.
  void load();

  // Opens the data, as train() does first.
  void open_data();
  // Opens the data and trains to the last iteration or to an exit condition; saves and evaluates
  // on the way and at the end.
  void train();

  // Saves a checkpoint now and waits until it is the latest. REQUIRES: the config names --save.
  void save();
  // Saves it in a directory that the config need not name.
  void save_in(const std::string& directory);
  // The trainer of train() in steps, with the run's saver; must not outlive the run.
  std::unique_ptr<Trainer> make_trainer();

  const RunConfig& config() const { return config_; }
  TrainTask& task() { return closed_.task; }
  TrainingState& state() { return *state_; }

 private:
  // Closes the task when the state is gone and the stream still lives.
  struct ClosedTask {
    TrainTask& task;
    ~ClosedTask() { task.close(); }
  };

  void print_size() const;
  // True if the run goes on from a local checkpoint, which is newer than the source. Throws
  // ConfigError if local checkpoints of another run are in the way.
  bool load_local_after(const CheckpointSource& source);

  const std::shared_ptr<const SaveDirectory> save_directory_;
  const RunConfig config_;
  const comm::Group world_;
  const Clock::time_point started_;
  Timers timers_;
  std::unique_ptr<OwnedStream> stream_;
  ClosedTask closed_;
  std::unique_ptr<TrainingState> state_;
  std::unique_ptr<RunSaver> saver_;
  std::unique_ptr<LocalCheckpoints> local_;  // --non-persistent-ckpt-type local
  std::unique_ptr<RunSaver> local_saver_;
};

}  // namespace megatron
