#include "megatron/run/prepared_run.h"

#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/device/free_memory.h"
#include "megatron/interchange/model_kind.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/run/agreement.h"
#include "megatron/run/collectively.h"
#include "megatron/run/device_choice.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/run_checkpoint.h"
#include "megatron/training/console_log.h"
#include "megatron/training/microbatch_calculator.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

// Prints Megatron-LM's lines before it builds anything.
void print_arguments(const TrainingArgs& args) {
  for (const std::string& note : args.notes) print_line(note);
  if (args.log_arguments != LogArguments::kNone) {
    const bool lists_all = args.log_arguments == LogArguments::kAll;
    for (const std::string& line : argument_dump(lists_all ? arg_map(args) : set_arguments(args))) {
      print_line(line);
    }
  }
  for (const std::string& warning : args.warnings) warn(warning);
}

// --log-path: all arguments in a file of their own.
void write_arguments(const TrainingArgs& args, const comm::Group& world) {
  const std::filesystem::path directory = args.training.log_path;
  if (directory.empty()) return;
  on_first_rank(world, [&] {
    std::error_code error;  // write_text_atomically() says it
    std::filesystem::create_directories(directory, error);
    std::string text;
    for (const std::string& line : argument_dump(arg_map(args))) text += line + "\n";
    const std::time_t now = std::time(nullptr);
    std::tm time = {};
    localtime_r(&now, &time);
    char name[64];
    std::strftime(name, sizeof name, "args_%Y-%m-%dT%H:%M:%S.txt", &time);
    write_text_atomically(directory / name, text);
  });
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

// Finds the checkpoint of --load, resolves the flags (with that checkpoint's architecture, if they
// ask for it), and adds their problems to `problems`.
CheckpointSource resolve_with_source(TrainingArgs& args, int num_ranks,
                                     std::vector<std::string>& problems) {
  CheckpointSource source;
  const CheckpointConfig& config = args.checkpoint;
  try {
    source = find_source(config.load, config.ckpt_step, config.exit_on_missing_checkpoint,
                         config.load_format, wanted_parts(config));
    if (source.exists()) expect_kind(source, args.transformer.kind);
    if (config.use_checkpoint_args && source.exists()) take_architecture(args, source);
  } catch (const Error& error) {  // stored flags are unknown and would be reported as missing
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
  // Retro's task reports unsupported formats together with its other problems.
  if (problems.empty() && !args.checkpoint.save.empty() && !args.transformer.retro.add_retriever) {
    try {
      expect_place(args.checkpoint.save_format, args.transformer);
    } catch (const Unsupported& error) {
      problems.push_back(fmt::format("--save-format: {}", error.what()));
    }
  }
  return source;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

PreparedRun prepare_run(TrainingArgs args, std::vector<std::string> problems,
                        const comm::Group& world, Clock::time_point started) {
  CheckpointSource source = resolve_with_source(args, world.size(), problems);
  expect_agreement(args, problems, world);
  auto save_directory = prepare_save_directory(args.checkpoint, source, world);
  print_arguments(args);
  write_arguments(args, world);
  print_batches(args.training);
  std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(args, source, world);
  args.settings = arg_map(args);
  if (args.transformer.is_decoder_only() && source.exists()) {
    keep_special_ids(args.settings, source.args(), tokenizer->special_id(SpecialToken::kEod));
  }
  print_line(fmt::format("> setting random seeds to {} ...", args.training.seed));
  print_line(fmt::format("time to initialize megatron (seconds): {:.3f}", seconds_since(started)));
  print_line(datetime_text("after megatron is initialized"));
  return PreparedRun{std::move(args), std::move(source), std::move(tokenizer), started,
                     std::move(save_directory)};
}

PreparedRun prepare_run(const RunConfig& config, const comm::Group& world,
                        Clock::time_point started) {
  return prepare_run(args_of(config), {}, world, started);
}

void check_memory(const TrainingArgs& args, const comm::Group& world) {
  warn_of_device(args.training.device, world);
  const Device device = chosen_device(args.training.device, world);
  const RankMemory needed = largest_rank_memory(planned_training(args, device.type));
  for (const std::string& line : summary_of(needed)) print_line(line);
  expect_to_fit(args, device, free_memory_bytes(device));
}

}  // namespace megatron
