#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/nn/module.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/training/trainer.h"
#include "megatron/training/training_state.h"
#include "tests/support/tensors.h"

// The smallest model that a Trainer can train: tokens to logits through one table and one product.
namespace megatron {

struct TinyMicrobatch {
  RowIds tokens;
  Tensor loss_mask;
  std::vector<Tensor*> tensors() { return {&tokens.ids, &tokens.order, &loss_mask}; }
};

class TinyTask final : public TrainTask {
 public:
  static constexpr int64_t kVocabulary = 24;
  static constexpr int64_t kHidden = 16;
  static constexpr int64_t kBatch = 2;
  static constexpr int64_t kLength = 8;

  explicit TinyTask(DType dtype) : dtype_(dtype) {}

  std::string_view model_name() const override { return "tiny"; }

  std::vector<const Module*> build_model(const ModelSite& site) override {
    model_ = std::make_unique<TinyModel>(dtype_, site.stream);
    return {model_.get()};
  }

  std::vector<ChunkBoundary> boundaries() const override { return {{}}; }
  int64_t tokens_per_sample() const override { return kLength; }
  double flops(int64_t batch_size) const override { return static_cast<double>(batch_size); }
  void open_data(const Progress&) override {}

  bool has_split(Split split) const override { return split != Split::kTest; }

  Microbatch get_batch(Split split, int64_t) override {
    const uint64_t seed = 100 + static_cast<uint64_t>(split == Split::kTrain ? ++calls : 0);
    const Shape shape = {kBatch, calls == shorter ? kLength / 2 : kLength};
    const RowIds ids = prepared_ids(random_ids(shape, kVocabulary, seed), kVocabulary, "token id");
    Tensor mask = full(shape, 1.0f, DType::kFloat32, Stream{});
    if (calls == poisoned_loss) mask.span<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    return TinyMicrobatch{ids, mask};
  }

  MicrobatchOutput forward_step(Split, int64_t, const Microbatch& batch,
                                std::span<const Variable>) override {
    const auto [tokens, loss_mask] = batch.as<TinyMicrobatch>();
    Variable x = embedding(model_->table.weight, tokens);  // [s, b, h]
    if (waits_for_device) synchronize(x.stream());
    if (calls == poisoned_gradient && grad_enabled()) {
      x = record("poison", copied(x.data()), {x}, [](const Tensor& dy, const Wants&) -> Grads {
        return {full(dy.shape(), std::numeric_limits<float>::infinity(), dy.dtype(), dy.stream())};
      });
    }
    const Variable loss = masked_mean(
        cross_entropy(linear(x, model_->output.weight, Variable()), tokens.ids, 0.0f), loss_mask);
    return {.losses = {loss}, .logged = {{"lm loss", loss.data()}}};
  }

  int64_t calls = 0;              // microbatches trained on so far
  int64_t poisoned_gradient = 0;  // the microbatch whose gradient of the table is infinite
  bool waits_for_device = false;  // in each forward pass
  int64_t shorter = -1;           // the microbatch with half the tokens
  int64_t poisoned_loss = 0;      // the microbatch with a NaN loss

 private:
  // A named table of small random values.
  struct Table final : Module {
    Table(uint64_t seed, DType dtype, Stream stream)
        : weight(add_parameter("weight", {kVocabulary, kHidden}, {.role = ParameterRole::kMatrix},
                               {.dtype = dtype, .stream = stream})) {
      Tensor values = weight.data();
      copy_into(values, random_normal({kVocabulary, kHidden},
                                      {.seed = seed, .stddev = 0.3f, .dtype = dtype})
                            .to(stream));
    }
    Variable weight;
  };
  struct TinyModel final : Module {
    TinyModel(DType dtype, Stream stream) : table(1, dtype, stream), output(2, dtype, stream) {
      add_child("table", table);
      add_child("output", output);
    }
    Table table;
    Table output;
  };

  DType dtype_;
  std::unique_ptr<TinyModel> model_;
};

// A task and everything that trains it. Change the configs before build().
struct TinyTraining {
  explicit TinyTraining(Stream on, DType dtype = DType::kFloat32) : stream(on), task(dtype) {
    config.micro_batch_size = TinyTask::kBatch;
    config.global_batch_size = 2 * TinyTask::kBatch;
    config.train_iters = 6;
    config.eval_iters = 0;
    config.log_interval = 1;
    config.seed = 1;
    optimizer_config.lr = 0.05;
    optimizer_config.params_dtype = dtype;
    optimizer_config.fp16 = dtype == DType::kFloat16;
    optimizer_config.bf16 = dtype == DType::kBFloat16;
    run.transformer.perform_initialization = false;  // the task has its own values
  }

  Trainer& build() {
    optimizer_config = resolved(optimizer_config);
    state = std::make_unique<TrainingState>(run, task, comm::Group(), stream);
    trainer = std::make_unique<Trainer>(
        run, task, *state, TrainerOptions{.records_microbatches = records_microbatches});
    return *trainer;
  }

  // The results of `count` iterations, in order.
  std::vector<IterationResult> results(int64_t count) {
    std::vector<IterationResult> all;
    const auto take = [&] {
      if (const auto finished = trainer->take_finished()) all.push_back(finished->result);
    };
    for (int64_t i = 0; i < count; ++i) {
      trainer->train_step();
      take();
    }
    trainer->finish_step();
    take();
    return all;
  }

  Tensor weights() const { return state->parameters.buffers()[0].params.to(Stream{}); }
  const Progress& progress() const { return state->progress; }

  Stream stream;
  bool records_microbatches = false;
  TinyTask task;
  RunConfig run;
  TrainingConfig& config = run.training;
  OptimizerConfig& optimizer_config = run.optimizer;
  std::unique_ptr<TrainingState> state;
  std::unique_ptr<Trainer> trainer;
};

}  // namespace megatron
