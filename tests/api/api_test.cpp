#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "megatron/megatron.h"
#include "tests/support/temporary_directory.h"

namespace megatron::api {
namespace {

using testing::ElementsAre;

TEST(Settings, AreWordsOfACommandLine) {
  Settings settings = {{"num-layers", 2},
                       {"lr", 1e-2},
                       {"mock-data", true},
                       {"bf16", false},
                       {"split", "9,1"},
                       {"eval-iters", 5},
                       {"data-path", std::vector<std::string>{"1", "a"}}};
  settings.set("eval-iters", 0);
  EXPECT_THAT(settings.words(),
              ElementsAre("--num-layers", "2", "--lr", "0.01", "--mock-data", "--split", "9,1",
                          "--eval-iters", "0", "--data-path", "1", "a"));
}

Settings tiny_gpt(int iterations) {
  return {{"num-layers", 1},
          {"hidden-size", 16},
          {"num-attention-heads", 2},
          {"seq-length", 8},
          {"max-position-embeddings", 8},
          {"micro-batch-size", 2},
          {"train-iters", iterations},
          {"lr", 1e-2},
          {"eval-iters", 0},
          {"mock-data", true},
          {"num-workers", 0},
          {"tokenizer-type", "NullTokenizer"},
          {"vocab-size", 20},
          {"device", "cpu"}};
}

TEST(Trainer, ReportsAllProblemsOfItsSettings) {
  Settings settings = tiny_gpt(1);
  settings.set("num-attention-heads", 3).set("hidden-sise", 4);
  EXPECT_THROW(Trainer{settings}, ConfigError);
}

// Every sample counts up from its number.
class CountingSamples final : public SampleDataset {
 public:
  explicit CountingSamples(int64_t size) : size_(size) {}
  int64_t num_samples() const override { return 1000; }
  int64_t sample_size() const override { return size_; }
  void read(int64_t sample, std::span<int64_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = (sample + static_cast<int64_t>(i)) % 20;
  }

 private:
  const int64_t size_;
};

class CountingTask final : public Task {
 public:
  std::shared_ptr<const SampleDataset> samples(Split, int64_t, int64_t tokens) const override {
    return std::make_shared<CountingSamples>(tokens);
  }
  void adjust_parameter(std::string_view name, std::span<const int64_t> shape,
                        ParameterOptions& options) const override {
    if (name.ends_with("position_embeddings.weight")) {
      EXPECT_THAT(shape, ElementsAre(8, 16));
      options = {.has_weight_decay = false, .lr_mult = 0};
    }
  }
};

std::vector<float> elements_of(const Trainer& trainer, const std::string& name) {
  for (const NamedTensor& parameter : trainer.parameters()) {
    if (!parameter.name.ends_with(name)) continue;
    const float* const floats = parameter.tensor.floats();
    return {floats, floats + parameter.tensor.numel()};
  }
  return {};
}

TEST(Trainer, TrainsATaskWhoseModelCounts) {
  const TemporaryDirectory directory;
  const CountingTask task;
  Settings settings = tiny_gpt(60);
  settings.set("micro-batch-size", 8);
  settings.set("save", directory.path().string()).set("save-interval", 60);
  {
    Trainer trainer(settings, task);
    const std::vector<float> positions = elements_of(trainer, "position_embeddings.weight");
    const std::vector<float> words = elements_of(trainer, "word_embeddings.weight");
    ASSERT_EQ(positions.size(), 8u * 16);
    trainer.train();
    EXPECT_EQ(trainer.iteration(), 60);
    EXPECT_EQ(elements_of(trainer, "position_embeddings.weight"), positions);
    EXPECT_NE(elements_of(trainer, "word_embeddings.weight"), words);
  }

  const Model model(directory.path().string());
  const std::vector<std::vector<int32_t>> prompts = {{4, 5, 6}, {11, 12}};
  EXPECT_THAT(model.generate(prompts, {.max_new_tokens = 2, .top_k = 1}),
              ElementsAre(ElementsAre(4, 5, 6, 7, 8), ElementsAre(11, 12, 13, 14)));

  const Tensor logits = model.logits(prompts[0]);
  ASSERT_EQ(logits.shape.size(), 2u);
  EXPECT_EQ(logits.shape[0], 3);
  EXPECT_EQ(logits.strides, (std::vector<int64_t>{logits.shape[1], 1}));
  const float* const last = logits.floats() + 2 * logits.shape[1];
  EXPECT_EQ(std::max_element(last, last + 20) - last, 7);
}

TEST(Trainer, RunsTheIterationsOfARunOneByOne) {
  const CountingTask task;
  Trainer whole(tiny_gpt(3), task);
  whole.train();
  Trainer trainer(tiny_gpt(3), task);
  double first = 0;
  for (int64_t iteration = 1; iteration <= 3; ++iteration) {
    const StepResult step = trainer.train_step();
    EXPECT_EQ(step.iteration, iteration);
    EXPECT_FALSE(step.is_skipped);
    EXPECT_GT(step.grad_norm.value(), 0);
    if (iteration == 1) first = step.loss.value();
    if (iteration == 3) {
      EXPECT_LT(step.loss.value(), first);
    }
  }
  const std::string words = "word_embeddings.weight";
  EXPECT_EQ(elements_of(trainer, words), elements_of(whole, words));
}

TEST(Ranks, ShareAModel) {
  run_ranks(2, [](const World& world) {
    EXPECT_EQ(world.size(), 2);
    Settings settings = tiny_gpt(1);
    settings.set("tensor-model-parallel-size", 2);
    Trainer trainer(settings, world);
    trainer.train();
    EXPECT_EQ(elements_of(trainer, "linear_fc1.weight").size(), 64u * 16 / 2);
  });
}

}  // namespace
}  // namespace megatron::api
