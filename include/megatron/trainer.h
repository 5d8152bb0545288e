#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "megatron/ranks.h"
#include "megatron/settings.h"
#include "megatron/task.h"
#include "megatron/tensor.h"

namespace megatron::api {

// The results of an iteration.
struct StepResult {
  int64_t iteration = 0;            // updates of the weights so far, with this one
  bool is_skipped = false;          // gradients overflowed: nothing was updated
  std::optional<double> loss;       // mean over the microbatches; on ranks of the last stage alone
  std::optional<double> grad_norm;  // before clipping
  double learning_rate = 0;         // of the next iteration
};

// A training run of a GPT. Prints Megatron-LM's lines: rank 0 those of the start, the last rank
// those of the training.
class Trainer {
 public:
  // Builds this rank's part of the model and of the optimizer, and continues from the checkpoint of
  // `load` if it is set. `task` and `world` must outlive the trainer; every rank of `world` calls
  // each function alike. Throws ConfigError with all problems of the settings.
  explicit Trainer(const Settings& settings, const World& world = {});
  Trainer(const Settings& settings, const Task& task, const World& world = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains to the last iteration or to an exit condition; evaluates and saves on the way.
  void train();
  // Runs one iteration and waits for it: no log lines, evaluation or saving. Throws Error if the
  // losses or gradients are not finite: then the model is as before.
  StepResult train_step();
  // Saves a checkpoint now and waits until it is the latest. REQUIRES: the settings have `save`.
  void save();

  // Updates of the weights so far.
  int64_t iteration() const;
  // This rank's shards of the parameters, without copies.
  std::vector<NamedTensor> parameters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron::api
