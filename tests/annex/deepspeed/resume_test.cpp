// Runs that the real DeepSpeed began (tests/golden/deepspeed) go on here with its losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/formats/safetensors.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/run/start.h"
#include "megatron/run/training_run.h"
#include "megatron/settings/training_args.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLength = 16;
constexpr int64_t kBatch = 8;
constexpr int64_t kSavedSteps = 5;

// Sample i is number i of the golden trainings.
class GoldenDataset final : public SampleDataset {
 public:
  GoldenDataset() {
    const SafetensorsFile file(source_path("tests/golden/deepspeed/training/tokens.safetensors"));
    tokens_ = copy_of(file.tensors()[0].view);
  }
  int64_t num_samples() const override { return tokens_.numel() / (kLength + 1); }
  int64_t sample_size() const override { return kLength + 1; }
  void read(int64_t sample, std::span<int64_t> out) const override {
    const int32_t* from = tokens_.span<int32_t>().data() + sample * (kLength + 1);
    for (size_t i = 0; i < out.size(); ++i) out[i] = from[i];
  }

 private:
  Tensor tokens_;
};

class GoldenTask final : public GptTask {
 public:
  using GptTask::GptTask;

 protected:
  SplitDatasets open_datasets(const SampleCounts&) const override {
    const auto data = std::make_shared<GoldenDataset>();
    return {.train = data, .valid = data, .test = data};
  }
};

// The model and the optimizer of the golden trainings. Their schedule, DeepSpeed's WarmupDecayLR,
// is this one from step 4 on.
RunConfig golden_run() {
  RunConfig config;
  config.transformer.num_layers = 3;
  config.transformer.hidden_size = 16;
  config.transformer.num_attention_heads = 2;
  config.transformer.seq_length = config.transformer.max_position_embeddings = kLength;
  config.transformer.make_vocab_size_divisible_by = 1;
  config.transformer.hidden_dropout = config.transformer.attention_dropout = 0;
  config.optimizer.lr = 0.01;
  config.optimizer.min_lr = 0;
  config.optimizer.lr_decay_style = LrDecayStyle::kLinear;
  config.optimizer.lr_warmup_iters = 4;
  config.optimizer.lr_decay_iters = 13;
  config.optimizer.weight_decay = 0.1;
  config.optimizer.adam_beta2 = 0.95;
  config.training.micro_batch_size = 2;
  config.training.global_batch_size = kBatch;
  config.training.train_iters = 10;
  config.training.eval_iters = 0;
  config.training.log_interval = 1;
  config.training.num_threads = 1;
  config.training.device = DeviceChoice::kCpu;
  config.data.mock_data = true;
  config.data.num_workers = 0;
  config.tokenizer = {.tokenizer_type = "NullTokenizer",
                      .vocab_size = 63};  // and the end of a document
  return config;
}

struct Layout {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;
  int zero_stage = 0;
};

// The losses of the steps that follow the checkpoint.
std::vector<double> losses_after(const fs::path& checkpoint, RunConfig config, Layout layout) {
  const TemporaryDirectory directory;
  config.checkpoint.load = checkpoint.string();
  config.training.metrics_jsonl = (directory.path() / "metrics.jsonl").string();
  config.parallel.tensor_model_parallel_size = layout.tensor;
  config.parallel.pipeline_model_parallel_size = layout.pipeline;
  config.parallel.use_distributed_optimizer = layout.zero_stage > 0;
  const CapturedStdout captured_out;
  const int ranks = layout.tensor * layout.pipeline * layout.data;
  comm::run_ranks(ranks, [&](const comm::Group& world) {
    RunConfig run_config = resolved(config, world.size());
    const auto tokenizer = open_tokenizer(run_config);
    GoldenTask task(run_config, tokenizer);
    TrainingRun trained(run_config, task, world);
    trained.load();
    trained.train();
  });
  std::vector<double> losses;
  std::ifstream file(config.training.metrics_jsonl);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json metrics = nlohmann::json::parse(line);  // a skipped iteration has no loss
    losses.push_back(metrics.value("lm loss", std::numeric_limits<double>::quiet_NaN()));
  }
  return losses;
}

// The losses of the run in runs.txt with that stage on two ranks.
std::vector<double> golden_losses(int stage) {
  std::ifstream file(source_path("tests/golden/deepspeed/training/runs.txt"));
  std::vector<double> losses;
  int found_stage = 0;
  int ranks = 0;
  for (int micro_batch = 0; file >> found_stage >> ranks >> micro_batch;) {
    for (int64_t step = 0; step < 10; ++step) {
      double loss = 0;
      double norm = 0;
      double lr = 0;
      file >> loss >> norm >> lr;
      if (found_stage == stage && ranks == 2 && step >= kSavedSteps) losses.push_back(loss);
    }
  }
  return losses;
}

void expect_losses(const std::vector<double>& got, const std::vector<double>& want,
                   double relative) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_EQ(got.size(), 5u);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], relative * want[i]) << "step " << i + 6;
  }
}

TEST(DeepSpeedResumeTest, GoesOnWithTheLossesInEveryLayout) {
  const fs::path checkpoints = source_path("tests/golden/deepspeed/checkpoints");
  for (const int stage : {1, 3}) {
    const fs::path checkpoint = checkpoints / ("zero" + std::to_string(stage));
    for (const Layout& layout :
         {Layout{}, Layout{.data = 2}, Layout{.tensor = 2}, Layout{.pipeline = 3},
          Layout{.tensor = 2, .data = 2, .zero_stage = 1}}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", tensor " + std::to_string(layout.tensor) +
                   ", pipeline " + std::to_string(layout.pipeline) + ", data " +
                   std::to_string(layout.data));
      expect_losses(losses_after(checkpoint, golden_run(), layout), golden_losses(stage), 1e-5);
    }
  }
}

std::vector<double> logged_losses(const fs::path& log) {
  std::string text = [&] {
    std::ifstream file(log);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  for (const std::string infinity = "Infinity"; text.find(infinity) != std::string::npos;) {
    text.replace(text.find(infinity), infinity.size(), "null");  // a norm that overflowed
  }
  std::vector<double> losses;
  const nlohmann::json run = nlohmann::json::parse(text);
  for (const auto& step : run.at("steps")) {
    if (step.at("step") > kSavedSteps) losses.push_back(step.at("loss").get<double>());
  }
  return losses;
}

// All stages in fp32; universal checkpoints, whose trainings DeepSpeed itself continued.
TEST(DeepSpeedResumeTest, GoesOnWithTheLossesOfTheRealTrainings) {
  MG_NEEDS_SHARED("golden/deepspeed/train");
  const fs::path runs = shared_data("golden/deepspeed/train");
  for (const char* name : {"z0_dp2_fp32", "z1_dp1_fp32", "z2_dp2_fp32", "z3_dp1_fp32"}) {
    SCOPED_TRACE(name);
    expect_losses(losses_after(runs / name / "ckpt/global_step5", golden_run(), {.data = 2}),
                  logged_losses(runs / name / "log.json"), 1e-5);
  }
  // Of stage 3, too: DeepSpeed loses the count of updates there and leaves its own curve.
  for (const char* name : {"z1_dp2_fp32", "z3_dp2_fp32"}) {
    SCOPED_TRACE(name);
    expect_losses(losses_after(runs / name / "ckpt/global_step5_universal", golden_run(), {}),
                  logged_losses(runs / name / "log.json"), 1e-5);
  }
  RunConfig untied = golden_run();
  untied.transformer.untie_embeddings_and_output_weights = true;
  const fs::path one_group = runs / "z1_dp2_fp32_onegroup_untied";
  const std::vector<double> losses = losses_after(one_group / "ckpt", untied, {.tensor = 2});
  ASSERT_EQ(losses.size(), 5u);  // of one group, which decays norms, too: the first is the same
  EXPECT_NEAR(losses[0], 4.19211483001709, 4e-5);
}

// In 16 bits other products are rounded.
TEST(DeepSpeedResumeTest, GoesOnIn16Bits) {
  constexpr double kRounding = 5e-4;
  RunConfig constant = golden_run();
  constant.optimizer.lr_decay_style = LrDecayStyle::kConstant;
  constant.optimizer.lr_warmup_iters = 0;
  RunConfig half = constant;
  half.optimizer.fp16 = true;
  const fs::path checkpoint = source_path("tests/golden/deepspeed/checkpoints/pipeline");
  const std::vector<double> losses = losses_after(checkpoint, half, {.pipeline = 3});
  ASSERT_EQ(losses.size(), 5u);
  // Only this one: from its first step on, that training of 0.8.3 measured gradients with a norm
  // 1.35 times as large as all others of the same weights, and clipped more.
  EXPECT_NEAR(losses[0], 4.101006507873535, 1e-4);

  MG_NEEDS_SHARED("golden/deepspeed/pipe");
  const fs::path runs = shared_data("golden/deepspeed");
  half = golden_run();
  half.optimizer.fp16 = true;
  half.optimizer.loss_scale_window = 1000;
  half.training.micro_batch_size = 4;
  // Steps 7 and 8 overflow here, too, and the second one halves the scale.
  const std::vector<double> got = losses_after(runs / "train/z1_dp1_fp16/ckpt", half, {});
  const std::vector<double> want = logged_losses(runs / "train/z1_dp1_fp16/log.json");
  ASSERT_EQ(got.size(), want.size());
  for (const size_t i : {0u, 3u, 4u}) EXPECT_NEAR(got[i], want[i], kRounding * want[i]) << i + 6;
  EXPECT_TRUE(std::isnan(got[1]) && std::isnan(got[2]));
  RunConfig brain = golden_run();
  brain.optimizer.bf16 = true;
  expect_losses(losses_after(runs / "train/z1_dp2_bf16/ckpt", brain, {.data = 2}),
                logged_losses(runs / "train/z1_dp2_bf16/log.json"), kRounding);
  constant.optimizer.bf16 = true;
  for (const char* name :
       {"ds0.19.8_pp2_dp1_bf16", "ds0.19.8_pp1_dp2_bf16", "ds0.8.3_pp1_dp2_bf16"}) {
    SCOPED_TRACE(name);
    expect_losses(losses_after(runs / "pipe" / name / "ckpt", constant, {}),
                  logged_losses(runs / "pipe" / name / "log.json"), kRounding);
  }
}

TEST(DeepSpeedResumeTest, CannotTakeAScheduleThatIsNotThere) {
  RunConfig config = golden_run();
  config.optimizer.use_checkpoint_opt_param_scheduler = true;
  const fs::path checkpoint = source_path("tests/golden/deepspeed/checkpoints/zero1");
  EXPECT_THAT(message_of<ConfigError>([&] { losses_after(checkpoint, config, {}); }),
              testing::HasSubstr("stores no schedule, only the position in it"));
}

}  // namespace
}  // namespace megatron
