#include "megatron/cli/pretrain_gpt.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>

#include "megatron/checkpoint/directory.h"
#include "megatron/cli/agreement.h"
#include "megatron/cli/gpt_checkpoint.h"
#include "megatron/cli/gpt_setup.h"
#include "megatron/cli/gpt_task.h"
#include "megatron/cli/memory_check.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/made_once.h"
#include "megatron/comm/transport.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/free_memory.h"
#include "megatron/run/device_choice.h"

namespace megatron::cli {
namespace {

using Clock = std::chrono::steady_clock;

// What Megatron-LM prints before it builds anything.
void print_arguments(const TrainingArgs& args) {
  for (const std::string& note : args.notes) print_line(note);
  for (const std::string& line : argument_dump(arg_map(args))) print_line(line);
  for (const std::string& warning : args.warnings) warn(warning);
}

void print_batches(const TrainingConfig& config) {
  const BatchSizeSchedule schedule = batch_size_schedule_of(config);
  if (schedule.is_constant()) {
    print_line(fmt::format("setting number of micro-batches to constant {}",
                           config.global_batch_size / config.micro_batch_size));
    return;
  }
  print_line(
      fmt::format("will use batch size rampup starting from global batch size {} to global "
                  "batch size {}",
                  schedule.at(0), schedule.final_batch_size()));
}

// What --load names. Resolves the flags, with its architecture if that is asked for; adds what is
// wrong to `problems`.
LoadSource resolve_with_source(TrainingArgs& args, int num_ranks,
                               std::vector<std::string>& problems) {
  LoadSource source;
  const CheckpointConfig& config = args.checkpoint;
  try {
    source = find_load_source(config.load, config.ckpt_step, config.exit_on_missing_checkpoint,
                              config.load_format);
    if (config.use_checkpoint_args && source.exists()) take_architecture(args, source);
  } catch (const Error& error) {  // the flags are not all known, and would be called missing
    problems = {error.what()};
    return source;
  }
  args = resolved(std::move(args), num_ranks, problems);
  for (std::string& problem : unavailable(args)) problems.push_back(std::move(problem));
  if (!args.transformer.perform_initialization && !source.exists()) {
    problems.emplace_back(
        "--no-initialization leaves the weights undefined; give --load with a checkpoint or remove "
        "the flag");
  }
  return source;
}

// Rows of the embedding in a checkpoint; 0 when it does not say.
int64_t saved_vocabulary(const LoadSource& source) {
  const ArgMap args = open_source(source).args;
  const auto found = args.find("padded_vocab_size");
  const int64_t* rows = found == args.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return rows == nullptr ? 0 : *rows;
}

// Opens the tokenizer and gives the embedding as many rows as it and the loaded model need.
// Ranks that are threads share it.
std::shared_ptr<const Tokenizer> open_tokenizer(TrainingArgs& args, const LoadSource& source,
                                                const comm::Group& world) {
  print_line(fmt::format("> building {} tokenizer ...", args.tokenizer.tokenizer_type));
  const auto tokenizer = comm::made_once(
      world, [&] { return std::shared_ptr<const Tokenizer>(make_tokenizer(args.tokenizer)); });
  const auto refuse_if_beyond = [&](int64_t rows) {
    if (tokenizer->vocab_size() <= rows) return;
    throw ConfigError(fmt::format(
        "the tokenizer has {} ids, the model {} rows; use the tokenizer the model was trained with",
        tokenizer->vocab_size(), rows));
  };
  int64_t used = tokenizer->vocab_size();
  if (source.hf) {
    refuse_if_beyond(source.hf->vocab_size);
    used = source.hf->vocab_size;
  }
  int64_t& padded = args.transformer.padded_vocab_size;
  const int64_t tp = args.parallel.tensor_model_parallel_size;
  if (padded == 0 && source.checkpoint) {
    // As the model was saved, also where another number of ranks would pad it otherwise.
    const int64_t saved = saved_vocabulary(source);
    if (saved >= used && saved % tp == 0) padded = saved;
  }
  if (padded == 0) {
    padded = padded_vocab_size(used, args.transformer.make_vocab_size_divisible_by, tp);
  }
  refuse_if_beyond(padded);
  print_line(fmt::format(" > padded vocab (size: {}) with {} dummy tokens (new size: {})",
                         tokenizer->vocab_size(), padded - tokenizer->vocab_size(), padded));
  return tokenizer;
}

// Finds out before training, not at the first save, that nothing can be saved.
void prepare_save_directory(const std::filesystem::path& save) {
  std::error_code error;
  std::filesystem::create_directories(save, error);
  if (!error && ::access(save.c_str(), W_OK) != 0) error = {errno, std::generic_category()};
  if (error) {
    throw IoError(fmt::format("--save {}: cannot write there: {}; choose another directory",
                              save.string(), error.message()));
  }
  remove_leftovers(save);
}

// Every rank that holds a part of the first copy of the model tells its size.
void print_size(const GptSetup& setup) {
  const ParallelContext& parallel = setup.parallel();
  const Speaking of_each_part(parallel.data.rank() == 0);
  int64_t count = 0;
  for (const std::unique_ptr<GptModel>& chunk : setup.chunks()) count += num_parameters(*chunk);
  print_line(
      fmt::format(" > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}",
                  parallel.tensor.rank(), parallel.pipeline.rank(), count));
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int pretrain_gpt(std::span<const std::string> words, const comm::Group& world) {
  const Speaking on_first(world.rank() == 0);
  const Clock::time_point started = Clock::now();
  std::vector<std::string> problems;
  TrainingArgs args = parsed_flags(words, ModelKind::kGpt, problems);
  if (args.wants_help) {
    print_line(training_help("pretrain-gpt"));
    return 0;
  }
  const LoadSource source = resolve_with_source(args, world.size(), problems);
  expect_agreement(args, problems, world);
  if (!args.checkpoint.save.empty() && world.rank() == 0) {
    prepare_save_directory(args.checkpoint.save);
  }

  print_arguments(args);
  print_batches(args.training);
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(args, source, world);
  print_line(fmt::format("> setting random seeds to {} ...", args.training.seed));
  print_line(fmt::format("time to initialize megatron (seconds): {:.3f}", seconds_since(started)));
  print_line(datetime_text("after megatron is initialized"));

  const Device device = chosen_device(args.training.device, world);
  for (const std::string& line :
       summary_of(largest_rank_memory(planned_training(args, device.type)))) {
    print_line(line);
  }
  expect_to_fit(args, device, free_memory_bytes(device));
  print_line("building GPT model ...");
  Timers timers(args.training.timing_log_level, args.training.timing_log_option);
  timers.start("model-and-optimizer-setup", 0);
  GptSetup setup(args, world);
  print_size(setup);
  print_line(
      fmt::format("> learning rate decay style: {}", name_of(args.optimizer.lr_decay_style)));
  if (!args.checkpoint.load.empty()) {
    const TimerScope timer(timers, "load-checkpoint", 0);
    load_run(setup, source);
  }
  timers.stop("model-and-optimizer-setup", 0);
  print_line(datetime_text("after model, optimizer, and learning rate scheduler are built"));

  timers.start("train/valid/test-data-iterators-setup", 0);
  GptTask task(*tokenizer, setup);
  timers.stop("train/valid/test-data-iterators-setup", 0);
  print_line(datetime_text("after dataloaders are built"));
  print_line("done with setup ...");
  print_line(
      timers.report({"model-and-optimizer-setup", "train/valid/test-data-iterators-setup"}, 1));

  const std::unique_ptr<AsyncSaver> saver = make_async_saver(args.checkpoint, world);
  TrainerParts parts = setup.parts(task);
  parts.started = started;
  if (!args.checkpoint.save.empty()) {
    parts.save = [&](const Progress&) { save_run(setup, *tokenizer, saver.get()); };
  }
  if (saver) {
    parts.finish_save = [&](bool waits) {
      return (waits ? saver->finish() : saver->finish_if_written()).has_value();
    };
  }
  if (const int64_t seconds = args.parallel.distributed_timeout_seconds_after_init; seconds > 0) {
    comm::barrier(world);  // nobody is still starting
    world.transport().context().timeout = std::chrono::seconds(seconds);
  }
  const std::optional<std::string> why = why_no_graph(args);
  if (why && args.training.cuda_graph && !device.is_cpu()) {
    print_line(fmt::format("microbatches run without a CUDA graph, because of {}", *why));
  }
  const Speaking on_last(world.rank() == world.size() - 1);
  Trainer(std::move(parts)).run();
  return 0;
}

}  // namespace megatron::cli
