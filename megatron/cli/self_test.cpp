#include "megatron/cli/self_test.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "megatron/cli/command.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/texts.h"
#include "megatron/core/error.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/run/device_choice.h"
#include "megatron/run/training_run.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/trainer.h"

namespace megatron::cli {
namespace {

constexpr const char* kSelfTestUsage =
    "megatron test [flags]\n\nmegatron launch --nproc-per-node N test checks N ranks of this "
    "machine.";

struct SelfTestOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t megabytes = 64;
};

struct Layout {
  const char* name;
  int64_t tensor = 1;
  int64_t pipeline = 1;
};

// The layouts of so many ranks that the model of tiny_gpt() can have.
std::vector<Layout> layouts_of(int64_t ranks) {
  constexpr int64_t kMost = 4;  // heads, and layers
  std::vector<Layout> layouts = {{"data parallel"}};
  if (ranks > 1 && kMost % ranks == 0) {
    layouts.push_back({"tensor parallel", ranks, 1});
    layouts.push_back({"pipeline parallel", 1, ranks});
  }
  if (ranks % 4 == 0) layouts.push_back({"tensor 2, pipeline 2", 2, 2});
  return layouts;
}

RunConfig tiny_gpt(const SelfTestOptions& options, int64_t ranks) {
  RunConfig config;
  config.transformer.num_layers = 4;
  config.transformer.hidden_size = 64;
  config.transformer.num_attention_heads = 4;
  config.transformer.seq_length = 64;
  config.transformer.max_position_embeddings = 64;
  config.transformer.pad_vocab_size_to = 512;  // in every layout
  config.transformer.hidden_dropout = 0;
  config.transformer.attention_dropout = 0;
  config.optimizer.lr = 1e-3;
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = 4 * ranks;
  config.training.train_iters = 2;
  config.training.eval_iters = 0;
  config.training.device = options.device;
  config.data.mock_data = true;
  config.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = 100};
  return config;
}

// The losses of two updates; empty on ranks that do not know them.
std::vector<double> losses_of(RunConfig config, const comm::Group& world) {
  config = resolved(config, world.size());
  const auto tokenizer = open_tokenizer(config, {}, world);
  GptTask task(config, tokenizer);
  TrainingRun run(config, task, world);
  task.open_data(run.state().progress);
  Trainer trainer(run.config(), task, run.state());
  std::vector<double> losses;
  for (int64_t step = 0; step < config.training.train_iters; ++step) {
    trainer.train_step();
    trainer.finish_step();
    const auto finished = trainer.take_finished();
    for (const auto& [name, value] : finished->result.losses) losses.push_back(value);
  }
  return losses;
}

void list_ranks(const SelfTestOptions& options, const comm::Group& world) {
  print_line("**Ranks**");
  const Device device = chosen_device(options.device, world);
  const std::string own =
      fmt::format("rank {} on {}: {}", world.rank(), host_name(),
                  device.type == DeviceType::kCpu ? "CPU" : fmt::format("GPU {}", device.index));
  for (const std::string& text : comm::gathered_texts(own, world)) print_line(text);
}

// Compares the sum over a group with the sum of what its members send one by one.
void check_sum(const comm::Group& group, int world_rank, const std::string& name, Stream stream) {
  const Tensor own = full({1}, static_cast<float>(world_rank + 1), DType::kFloat32, stream);
  Tensor all({group.size()}, DType::kFloat32, stream);
  comm::all_gather(all.view(), own.view(), group, stream);
  Tensor sum = copied(own);
  comm::all_reduce(sum.view(), comm::Reduce::kSum, group, stream);
  const Tensor there = all.to(Stream{});
  float expected = 0;
  for (const float value : there.span<float>()) expected += value;
  if (sum.to(Stream{}).item() != expected) {
    throw Error(
        fmt::format("{}: rank {} has the sum {}, expected {}; check the network of its host", name,
                    world_rank, sum.to(Stream{}).item(), expected));
  }
}

void check_groups(const Layout& layout, const comm::Group& world, Stream stream) {
  ParallelConfig config;
  config.tensor_model_parallel_size = layout.tensor;
  config.pipeline_model_parallel_size = layout.pipeline;
  config.world_size = world.size();
  const ParallelContext parallel = make_parallel_context(world, resolved(config));
  const auto check = [&](const comm::Group& group, const char* name) {
    check_sum(group, world.rank(), fmt::format("{}: {} group", layout.name, name), stream);
  };
  check(parallel.world, "world");
  check(parallel.tensor.group, "tensor");
  check(parallel.pipeline, "pipeline");
  check(parallel.data, "data");
  print_line(fmt::format("{}: sums over all groups are right", layout.name));
}

void measure_bandwidth(const SelfTestOptions& options, const comm::Group& world, Stream stream) {
  constexpr int kTimes = 5;
  const int64_t bytes = options.megabytes << 20;
  Tensor data = zeros({bytes / int64_t{sizeof(float)}}, DType::kFloat32, stream);
  double best = 0;
  for (int i = 0; i < kTimes; ++i) {
    comm::barrier(world);
    const auto begin = std::chrono::steady_clock::now();
    comm::all_reduce(data.view(), comm::Reduce::kSum, world, stream);
    synchronize(stream);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(bytes) / seconds.count());
  }
  print_line(fmt::format("all-reduce of {} MiB over {} ranks: {:.2f} GB/s", options.megabytes,
                         world.size(), best / 1e9));
}

void compare_training(const Layout& layout, const SelfTestOptions& options,
                      const comm::Group& world) {
  RunConfig config = tiny_gpt(options, world.size());
  const std::vector<double> want = losses_of(config, {});
  config.parallel.tensor_model_parallel_size = layout.tensor;
  config.parallel.pipeline_model_parallel_size = layout.pipeline;
  const std::vector<double> got = losses_of(config, world);
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - want[i]) <= 1e-4 * std::abs(want[i])) continue;
    throw Error(fmt::format("{}: the loss of step {} is {}, and {} on one rank", layout.name, i + 1,
                            got[i], want[i]));
  }
  print_line(fmt::format("{}: two steps have the losses of one rank", layout.name));
}

}  // namespace

int self_test(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  SelfTestOptions options;
  FlagTable flags;
  flags.group("test");
  flags.add_choice(
      "--device", options.device,
      {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
      "Device of the ranks; auto takes GPUs if there are any.");
  flags.add("--megabytes", options.megabytes, "Size of the timed transfers, in MiB.");
  if (!parse_flags(flags, kSelfTestUsage, words)) return 0;
  if (options.megabytes < 1) {
    throw ConfigError(fmt::format("--megabytes {} must be at least 1", options.megabytes));
  }
  list_ranks(options, world);
  {
    const OwnedStream stream(chosen_device(options.device, world));
    print_line("**Groups**");
    for (const Layout& layout : layouts_of(world.size())) {
      check_groups(layout, world, stream.get());
    }
    if (world.size() > 1) {
      print_line("**Bandwidth**");
      measure_bandwidth(options, world, stream.get());
    }
  }
  print_line("**Training**");
  for (const Layout& layout : layouts_of(world.size())) compare_training(layout, options, world);
  print_line("Test is a success: the ranks work together.");
  return 0;
}

}  // namespace megatron::cli
