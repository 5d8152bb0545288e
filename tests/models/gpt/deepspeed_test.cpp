// Trainings of the real DeepSpeed (tests/golden/deepspeed): every stage of ZeRO gives its losses
// and norms.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/formats/safetensors.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/optim/gradient_reduction.h"
#include "megatron/optim/optimizer.h"
#include "tests/parallel/layouts.h"
#include "tests/support/source_path.h"

namespace megatron {
namespace {

const std::filesystem::path kFolder = source_path("tests/golden/deepspeed/training");
constexpr int64_t kMicrobatches = 2;
constexpr int64_t kLength = 16;

struct LoggedStep {
  double loss = 0;
  double grad_norm = 0;  // 0: not reported
  double lr = 0;
};
struct LoggedRun {
  int stage = 0;
  int ranks = 1;
  int64_t micro_batch_size = 1;
  std::vector<LoggedStep> steps;
};

std::vector<LoggedRun> logged_runs() {
  std::ifstream file(kFolder / "runs.txt");
  std::vector<LoggedRun> runs;
  for (LoggedRun run; file >> run.stage >> run.ranks >> run.micro_batch_size;) {
    run.steps.resize(10);
    for (LoggedStep& step : run.steps) file >> step.loss >> step.grad_norm >> step.lr;
    runs.push_back(run);
  }
  return runs;
}

// Megatron-LM's older name of a parameter of ours.
std::string name_there(std::string name) {
  const std::pair<const char*, const char*> rules[] = {
      {"decoder.", "encoder."},        {"linear_qkv", "query_key_value"},
      {"linear_proj", "dense"},        {"pre_mlp_layernorm", "post_attention_layernorm"},
      {"linear_fc1", "dense_h_to_4h"}, {"linear_fc2", "dense_4h_to_h"}};
  for (const auto& [ours, theirs] : rules) {
    const size_t at = name.find(ours);
    if (at != std::string::npos) name.replace(at, std::string(ours).size(), theirs);
  }
  return "language_model." + name;
}

void read_weights(const GptModel& model) {
  const SafetensorsFile file(kFolder / "first_weights.safetensors");
  std::map<std::string, ConstView> by_name;
  for (const SafetensorsFile::Entry& tensor : file.tensors())
    by_name[tensor.spec.name] = tensor.view;
  for (Parameter& parameter : named_parameters(model)) {
    copy_into(parameter.variable.mutable_data(), copy_of(by_name.at(name_there(parameter.name))));
  }
}

// The tokens of a step, [8, 17] int32 in the file, as int64 inputs and labels [b, 16] of some
// samples.
struct Samples {
  Tensor inputs;
  Tensor labels;
};
Samples samples_of(const Tensor& tokens, int64_t step, int64_t first, int64_t count) {
  Samples samples{Tensor({count, kLength}, DType::kInt64, {}),
                  Tensor({count, kLength}, DType::kInt64, {})};
  const int32_t* all = tokens.span<int32_t>().data() + (step * 8 + first) * (kLength + 1);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < kLength; ++j) {
      const auto at = static_cast<size_t>(i * kLength + j);
      samples.inputs.span<int64_t>()[at] = all[i * (kLength + 1) + j];
      samples.labels.span<int64_t>()[at] = all[i * (kLength + 1) + j + 1];
    }
  }
  return samples;
}

TransformerConfig tiny_gpt() {
  TransformerConfig c;
  c.num_layers = 3;
  c.hidden_size = 16;
  c.num_attention_heads = 2;
  c.seq_length = c.max_position_embeddings = kLength;
  c.padded_vocab_size = 64;
  c.hidden_dropout = c.attention_dropout = 0;
  return resolved(c);
}

OptimizerConfig adamw() {
  OptimizerConfig config;
  config.adam_beta1 = 0.9;
  config.adam_beta2 = 0.95;
  config.adam_eps = 1e-8;
  config.clip_grad = 1;
  return config;
}

void expect_same_training(const LoggedRun& run, const comm::Group& world) {
  const Tensor tokens = [] {
    const SafetensorsFile file(kFolder / "tokens.safetensors");
    return copy_of(file.tensors()[0].view);
  }();
  const GptModel model(tiny_gpt(), Stream{});
  read_weights(model);
  const bool shares = run.stage > 0;
  FlatParameters flat(optimized_parameters(model),
                      {.layout = {.bucket_size = run.stage > 1 ? 2000 : 0},
                       .divides_state = shares,
                       .divides_gradients = run.stage > 1,
                       .divides_parameters = run.stage > 2},
                      data_parallel(world));
  GradientReduction gradients(flat, {}, {});
  Optimizer optimizer(flat, adamw(), [&](TensorView numbers, Stream on) {
    if (shares) comm::all_reduce(numbers, comm::Reduce::kSum, world, on);
  });
  RandomState random(1);
  const Tensor ones = full({run.micro_batch_size, kLength}, 1, DType::kFloat32, {});
  const auto num_losses = static_cast<float>(kMicrobatches * run.ranks);
  for (size_t step = 0; step < run.steps.size(); ++step) {
    flat.zero_grads();
    gradients.begin(kMicrobatches);
    Tensor loss = zeros({}, DType::kFloat32, {});
    for (int64_t m = 0; m < kMicrobatches; ++m) {
      const int64_t first = (m * run.ranks + world.rank()) * run.micro_batch_size;
      const Samples samples =
          samples_of(tokens, static_cast<int64_t>(step), first, run.micro_batch_size);
      const Variable y = token_loss(model, model.hidden_states({.tokens = samples.inputs}, random),
                                    {.labels = samples.labels, .loss_mask = ones});
      add_inplace(loss, y.data(), 1 / num_losses);
      backward(y, full({}, 1 / num_losses, DType::kFloat32, {}));
    }
    gradients.finish();
    comm::all_reduce(loss.view(), comm::Reduce::kSum, world, Stream{});
    const LoggedStep& want = run.steps[step];
    const StepResult result =
        optimizer.step({.lr = want.lr, .decoupled_lr = want.lr, .weight_decay = 0.1});
    gradients.gather_parameters();
    EXPECT_NEAR(loss.item(), want.loss, 1e-5 * want.loss) << "step " << step + 1;
    if (want.grad_norm == 0) continue;
    EXPECT_NEAR(*result.grad_norm, want.grad_norm, 1e-5 * want.grad_norm) << "step " << step + 1;
  }
}

TEST(DeepSpeedTest, EveryStageTrainsAsThere) {
  const std::vector<LoggedRun> runs = logged_runs();
  ASSERT_EQ(runs.size(), 8u);
  for (const LoggedRun& run : runs) {
    SCOPED_TRACE("stage " + std::to_string(run.stage) + ", ranks " + std::to_string(run.ranks));
    comm::run_ranks(run.ranks, [&](const comm::Group& world) { expect_same_training(run, world); });
  }
}

}  // namespace
}  // namespace megatron
