#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/training/trainer.h"
#include "tests/support/tensors.h"

// The smallest thing a Trainer can train: tokens to logits through one table and one product.
namespace megatron {

class TinyTask final : public TrainTask {
 public:
  static constexpr int64_t kVocabulary = 24;
  static constexpr int64_t kHidden = 16;
  static constexpr int64_t kBatch = 2;
  static constexpr int64_t kLength = 8;

  TinyTask(DType dtype, Stream stream) {
    const auto weight = [&](uint64_t seed) {
      return Variable::leaf(
          random_normal({kVocabulary, kHidden}, {.seed = seed, .stddev = 0.3f, .dtype = dtype})
              .to(stream));
    };
    table_ = weight(1);
    output_ = weight(2);
  }

  std::vector<OptimizedParameter> parameters() const {
    return {{.name = "table.weight", .variable = table_},
            {.name = "output.weight", .variable = output_}};
  }

  bool has_split(Split split) const override { return split != Split::kTest; }

  Microbatch get_batch(Split split, int64_t) override {
    const uint64_t seed = 100 + static_cast<uint64_t>(split == Split::kTrain ? ++calls : 0);
    const Shape shape = {kBatch, calls == shorter ? kLength / 2 : kLength};
    const RowIds ids = prepared_ids(random_ids(shape, kVocabulary, seed), kVocabulary, "token id");
    Tensor mask = full(shape, 1.0f, DType::kFloat32, Stream{});
    if (calls == poisoned_loss) mask.span<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    return {ids.ids, ids.order, mask};
  }

  MicrobatchOutput forward_step(Split, int64_t, const Microbatch& batch, const Variable&) override {
    Variable x = embedding(table_, {batch[0], batch[1]});  // [s, b, h]
    if (waits_for_device) synchronize(x.stream());
    if (calls == poisoned_gradient && grad_enabled()) {
      x = record("poison", copied(x.data()), {x}, [](const Tensor& dy, const Wants&) -> Grads {
        return {full(dy.shape(), std::numeric_limits<float>::infinity(), dy.dtype(), dy.stream())};
      });
    }
    const Variable loss =
        masked_mean(cross_entropy(linear(x, output_, Variable()), batch[0], 0.0f), batch[2]);
    return {loss, {{"lm loss", loss.data()}}};
  }

  int64_t calls = 0;              // microbatches trained on so far
  int64_t poisoned_gradient = 0;  // the microbatch whose gradient of the table is infinite
  bool waits_for_device = false;  // in each forward pass
  int64_t shorter = -1;           // the microbatch that has half the tokens
  int64_t poisoned_loss = 0;      // the microbatch whose loss is not a number

 private:
  Variable table_;
  Variable output_;
};

// A task with what trains it. Change the configs before build().
struct TinyTraining {
  explicit TinyTraining(Stream on, DType dtype = DType::kFloat32)
      : stream(on), task(dtype, on), random(1) {
    config.micro_batch_size = TinyTask::kBatch;
    config.global_batch_size = 2 * TinyTask::kBatch;
    config.train_iters = 6;
    config.eval_iters = 0;
    config.log_interval = 1;
    optimizer_config.lr = 0.05;
    optimizer_config.params_dtype = dtype;
    optimizer_config.fp16 = dtype == DType::kFloat16;
    optimizer_config.bf16 = dtype == DType::kBFloat16;
  }

  Trainer& build() {
    parameters = std::make_unique<FlatParameters>(
        task.parameters(), FlatParametersOptions{.accumulate_allreduce_grads_in_fp32 = false});
    optimizer_config = resolved(optimizer_config);
    gradients =
        std::make_unique<GradientReduction>(*parameters, parallel, GradientReductionOptions{});
    optimizer = std::make_unique<Optimizer>(*parameters, optimizer_config);
    scheduler = std::make_unique<ParameterScheduler>(make_parameter_scheduler(
        optimizer_config, {.train_iters = config.train_iters,
                           .train_samples = 0,
                           .global_batch_size = config.global_batch_size}));
    microbatches = std::make_unique<MicrobatchCalculator>(make_microbatch_calculator(config, 1));
    trainer = std::make_unique<Trainer>(
        TrainerParts{.config = config,
                     .task = task,
                     .parameters = *parameters,
                     .optimizer = *optimizer,
                     .scheduler = *scheduler,
                     .microbatches = *microbatches,
                     .random = random,
                     .progress = progress,
                     .gradients = *gradients,
                     .parallel = parallel,
                     .stream = stream,
                     .records_microbatches = records_microbatches,
                     .tokens_per_sample = TinyTask::kLength,
                     .flops = [](int64_t batch) { return static_cast<double>(batch); },
                     .save = nullptr,
                     .save_interval = 0,
                     .save_directory = "",
                     .started = std::chrono::steady_clock::now()});
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

  Tensor weights() const { return parameters->buffers()[0].params.to(Stream{}); }

  Stream stream;
  bool records_microbatches = false;
  TinyTask task;
  TrainingConfig config;
  OptimizerConfig optimizer_config;
  RandomState random;
  Progress progress;
  ParallelContext parallel;
  std::unique_ptr<FlatParameters> parameters;
  std::unique_ptr<GradientReduction> gradients;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<ParameterScheduler> scheduler;
  std::unique_ptr<MicrobatchCalculator> microbatches;
  std::unique_ptr<Trainer> trainer;
};

}  // namespace megatron
