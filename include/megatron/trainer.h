#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/arg_map.h"
#include "megatron/model.h"
#include "megatron/ranks.h"
#include "megatron/settings.h"
#include "megatron/task.h"
#include "megatron/tensor.h"
#include "megatron/transformer/model_kind.h"

namespace megatron::api {

// Named losses in the order of the log.
using Losses = std::vector<std::pair<std::string, double>>;

// The results of an iteration.
struct StepResult {
  int64_t iteration = 0;            // updates of the weights so far, with this one
  bool is_skipped = false;          // gradients overflowed: nothing was updated
  std::optional<double> loss;       // mean over the microbatches; on ranks of the last stage alone
  std::optional<double> grad_norm;  // before clipping
  double learning_rate = 0;         // of the next iteration
  double loss_scale = 1;
  int64_t consumed_samples = 0;  // so far
  Losses losses = {};            // all that the log has, like `loss`
};

// Samples from the caller, in place of those of a dataset: this replica's rows of a global batch,
// micro_batch_size for each of its microbatches.
//
//                  GPT        BERT            T5
//   tokens         [rows, s + 1]  [rows, s]   [rows, se]  of a GPT with one more, the last label
//   labels         [rows, s]  [rows, s]       [rows, sd]  negative: none; a GPT's may be left out:
//                                                         the next tokens
//   loss_mask      [rows, s]  [rows, s]       [rows, sd]  multiplies the weights of the tokens in
//                                                         the loss; empty: ones
//   token_types    -          [rows, s]       -           empty: zeros
//   attention_mask -          [rows, s]       [rows, se]  0 hides a token; empty: none is hidden
//   decoder_tokens -          -               [rows, sd]
//   sentence_order -          [rows]          -           of the binary head: 1 if the parts are
//                                                         exchanged
//
// A BERT with a classification head has labels [rows], the classes, or [rows, n], zeros and ones;
// with one output it has values [rows] in their place.
struct Batch {
  std::span<const int64_t> tokens;
  std::span<const int64_t> labels = {};
  std::span<const float> loss_mask = {};
  std::span<const int64_t> token_types = {};
  std::span<const int64_t> attention_mask = {};
  std::span<const int64_t> decoder_tokens = {};
  std::span<const int64_t> sentence_order = {};
  std::span<const float> values = {};
};

// This rank's place in the layout of a run.
struct Layout {
  int tensor_rank = 0;
  int tensor_size = 1;
  int pipeline_rank = 0;
  int pipeline_size = 1;
  int data_rank = 0;  // the replica, which gets samples of its own
  int data_size = 1;
};

// A training run. Prints Megatron-LM's lines: rank 0 those of the start, the last rank
// those of the training.
class Trainer {
 public:
  // Builds this rank's part of the model and of the optimizer, and continues from the checkpoint of
  // `load` if it is set. `task` and `world` must outlive the trainer; every rank of `world` calls
  // each function alike. Throws ConfigError with all problems of the settings.
  explicit Trainer(const Settings& settings, const World& world = {});
  Trainer(const Settings& settings, const Task& task, const World& world = {});
  // A model of another kind: the settings are those of `megatron pretrain-bert` or -t5. With
  // mock_data batches are the caller's. A model_config with a classification head gives a BERT that
  // head. Of a task a BERT uses adjust_parameter(), a T5 its loss, too.
  Trainer(ModelKind kind, const Settings& settings, const World& world = {});
  Trainer(ModelKind kind, const Settings& settings, const Task& task, const World& world = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains to the last iteration or to an exit condition; evaluates and saves on the way.
  void train();
  // Runs one iteration and waits for it: no log lines, evaluation or saving. Throws Error if the
  // losses or gradients are not finite: then the model is as before.
  StepResult train_step();
  // The same on samples of the caller. Throws ShapeError for an array of another size.
  StepResult train_step(const Batch& batch);

  // train() in steps: runs one iteration and waits for it, then logs, evaluates, saves and checks
  // the exits as is due. Empty after the last iteration, when the final evaluations are done.
  std::optional<StepResult> next();

  // Continues prompts with the weights as they are, as Model::generate(). Throws Unsupported for
  // other models than a GPT, and for a layout that generation has not.
  std::vector<std::vector<int32_t>> generate(std::span<const std::vector<int32_t>> prompts,
                                             const GenerateOptions& options);

  // Mean losses over eval_iters global batches, over one, or over one of the caller's; empty on
  // ranks without the last stage. Throws ConfigError if there is no data for the split.
  Losses evaluate(Split split = Split::kValid);
  Losses evaluate_step(Split split = Split::kValid);
  Losses evaluate_step(const Batch& batch);

  // Saves a checkpoint now and waits until it is the latest. Throws ConfigError unless the settings
  // have `save`.
  void save();
  // Saves it in another directory.
  void save(const std::string& directory);
  // Continues from another checkpoint. REQUIRES: no data was opened: batches are the caller's.
  void load(const std::string& directory);

  // Updates of the weights so far.
  int64_t iteration() const;
  Layout layout() const;
  // The rows of a Batch.
  int64_t rows() const;
  int64_t seq_length() const;  // of an encoder and decoder that of the encoder
  // All settings, resolved, by their names in Megatron-LM.
  ArgMap resolved() const;
  // Over the ranks with the same weights: the mean of each value; the values of all, in rank order.
  std::vector<float> data_parallel_mean(std::span<const float> values) const;
  std::vector<float> data_parallel_gather(std::span<const float> values) const;
  // This rank's shards of the parameters, without copies.
  std::vector<NamedTensor> parameters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron::api
