#include "megatron/run/training_run.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "annex/emissions/emissions_report.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/transport.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parts.h"
#include "megatron/run/collectively.h"
#include "megatron/run/device_choice.h"
#include "megatron/run/run_checkpoint.h"
#include "megatron/training/console_log.h"
#include "megatron/training/replica_check.h"
#include "megatron/training/trainer.h"

namespace megatron {
namespace {

constexpr const char* kModelTimer = "model-and-optimizer-setup";
constexpr const char* kDataTimer = "train/valid/test-data-iterators-setup";

CheckpointSource source_of_load(const CheckpointConfig& c) {
  if (c.load.empty()) return {};
  return find_source(c.load, c.ckpt_step, c.exit_on_missing_checkpoint, c.load_format,
                     wanted_parts(c));
}

// The directory that the caller has prepared, or prepares it.
std::shared_ptr<const SaveDirectory> prepared(std::shared_ptr<const SaveDirectory> directory,
                                              const CheckpointConfig& c, const comm::Group& world) {
  if (directory != nullptr) return directory;
  return prepare_save_directory(c, c.save.empty() ? CheckpointSource() : source_of_load(c), world);
}

// Set by `megatron launch`: the directory in memory that it keeps over restarts, and the number of
// restarts, if there were any.
constexpr const char* kLocalVariable = "MEGATRON_LOCAL_CHECKPOINTS";
constexpr const char* kRestartVariable = "MEGATRON_RESTART";

// Null without --non-persistent-ckpt-type local.
std::unique_ptr<LocalCheckpoints> open_local_checkpoints(const CheckpointConfig& c,
                                                         const comm::Group& world) {
  if (c.non_persistent_ckpt_type != NonPersistentType::kLocal) return nullptr;
  const char* const kept = std::getenv(kLocalVariable);
  if (c.non_persistent_local_ckpt_dir.empty() && kept == nullptr) {
    throw ConfigError(
        "--non-persistent-ckpt-type local needs `megatron launch --max-restarts N`, which keeps "
        "checkpoints in memory, or --non-persistent-local-ckpt-dir with a directory of each host");
  }
  Replication replication;
  if (c.replication) {
    const comm::RankContext& context = world.transport().context();
    const int64_t of_host = context.hosts.empty() ? 1 : context.local_size;  // one host: any
    replication = {.jump = c.replication_jump > 0 ? c.replication_jump : of_host,
                   .factor = c.replication_factor};
    if (world.size() % (replication.jump * replication.factor) != 0) {
      throw ConfigError(fmt::format(
          "--replication-jump {} x --replication-factor {} must divide the {} ranks; the jump is "
          "usually the number of ranks of a host",
          replication.jump, replication.factor, world.size()));
    }
  }
  auto local = std::make_unique<LocalCheckpoints>(
      c.non_persistent_local_ckpt_dir.empty() ? kept : c.non_persistent_local_ckpt_dir, replication,
      world);
  if (c.replication && local->has_no_copies()) {
    warn(
        "--replication: all ranks that would keep copies have the same directory as the rank that "
        "saves, so nothing is copied; with several hosts, the jump is the number of ranks of one");
  }
  return local;
}

// The report of a host, on its first rank; null if there is none.
std::unique_ptr<const EmissionsReport> opened_report(const RunConfig& config,
                                                     const comm::Group& world, Stream stream) {
  const std::filesystem::path directory = config.training.codecarbon_dir;
  if (directory.empty()) return nullptr;
  if constexpr (!kHasEmissions) refuse_missing("the report of --codecarbon-dir", "MG_EMISSIONS");
  const bool is_first = world.size() == 1 || world.transport().context().local_rank == 0;
  if (!is_first) return nullptr;
  const std::string name =
      world.rank() == 0 ? "emissions.csv" : fmt::format("emissions-{:03d}.csv", world.rank());
  EnergyMeter::Options options;
  options.has_gpus = !stream.is_cpu();
  return std::make_unique<const EmissionsReport>(directory / name, options);
}

}  // namespace

TrainingRun::TrainingRun(const RunConfig& config, TrainTask& task, const comm::Group& world,
                         Clock::time_point started,
                         std::shared_ptr<const SaveDirectory> save_directory)
    : save_directory_(prepared(std::move(save_directory), config.checkpoint, world)),
      config_(config),
      world_(world),
      started_(started),
      timers_(config.training.timing_log_level, config.training.timing_log_option),
      closed_{task} {
  const LogScope on_first(world.rank() == 0);
  print_line(fmt::format("building {} model ...", task.model_name()));
  const TimerScope timer(timers_, kModelTimer, 0);
  stream_ = open_stream(config_.training, world);
  state_ = std::make_unique<TrainingState>(config_, task, world, stream_->get());
  saver_ = make_run_saver(config_, *state_, task, save_directory_->foreign_iterations);
  local_ = open_local_checkpoints(config_.checkpoint, world);
  if (local_ != nullptr) local_saver_ = make_local_saver(config_, *state_, task, *local_);
  print_size();
  print_line(
      fmt::format("> learning rate decay style: {}", name_of(config_.optimizer.lr_decay_style)));
}

// Every rank of the first copy of the model prints the size of its part.
void TrainingRun::print_size() const {
  const ParallelContext& parallel = state_->parallel;
  const LogScope of_each_part(parallel.data.rank() == 0);
  int64_t count = 0;
  for (const Module* chunk : state_->chunks) count += num_parameters(*chunk);
  print_line(
      fmt::format(" > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}",
                  parallel.tensor.rank(), parallel.pipeline.rank(), count));
}

void TrainingRun::load(const CheckpointSource& source) {
  const LogScope on_first(world_.rank() == 0);
  const TimerScope timer(timers_, kModelTimer, 0);
  const comm::Working working(world_, "loading a checkpoint");
  if (!load_local_after(source)) load_run(config_, *state_, source);
  expect_equal_replicas(*state_);
}

bool TrainingRun::load_local_after(const CheckpointSource& source) {
  if (local_ == nullptr) return false;
  const CheckpointConfig& c = config_.checkpoint;
  const bool begins = c.finetune || (source.exists() && source.hf() != nullptr);
  const bool resumes = (!c.load.empty() && !begins) || std::getenv(kRestartVariable) != nullptr;
  const std::optional<int64_t> there = local_->newest_of_any_run();
  if (!resumes) {
    if (there && !c.overwrite_checkpoints) {
      throw ConfigError(fmt::format(
          "{}: local checkpoints of another run are there, up to iteration {}, and this run starts "
          "at iteration 0; go on from them with --load, choose another "
          "--non-persistent-local-ckpt-dir, or give --overwrite-checkpoints",
          local_->directory().string(), *there));
    }
    local_->clear();
    return false;
  }
  if (c.ckpt_step > 0 || c.no_load_optim || c.no_load_rng) return false;
  const bool has_saved = source.exists() && !begins;
  return load_local(config_, *state_, *local_,
                    has_saved ? source.contents(config_.settings).iteration : -1);
}

void TrainingRun::load() {
  if (!config_.checkpoint.load.empty()) load(source_of_load(config_.checkpoint));
}

void TrainingRun::save() {
  invariant(saver_ != nullptr, "a run that saves has --save");
  if (!saver_->save()) saver_->finish(true);
}

void TrainingRun::save_in(const std::string& directory) {
  RunConfig config = config_;
  config.checkpoint.save = directory;
  config.checkpoint.async_save = false;
  on_first_rank(world_, [&] {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
      throw IoError(fmt::format("{}: cannot be created: {}; choose another folder", directory,
                                error.message()));
    }
  });
  make_run_saver(config, *state_, task())->save();
}

std::unique_ptr<Trainer> TrainingRun::make_trainer() {
  return std::make_unique<Trainer>(
      config_, task(), *state_,
      TrainerOptions{
          .saver = saver_.get(), .local_saver = local_saver_.get(), .started = started_});
}

void TrainingRun::open_data() {
  const LogScope on_first(world_.rank() == 0);
  print_line(datetime_text("after model, optimizer, and learning rate scheduler are built"));
  {
    const TimerScope timer(timers_, kDataTimer, 0);
    task().open_data(state_->progress);
  }
  print_line(datetime_text("after dataloaders are built"));
  print_line("done with setup ...");
  print_line(timers_.report({kModelTimer, kDataTimer}, 1));

  if (const int64_t seconds = config_.parallel.distributed_timeout_seconds_after_init;
      seconds > 0) {
    comm::barrier(world_);  // all ranks have started
    world_.transport().context().timeout = std::chrono::seconds(seconds);
  }
}

void TrainingRun::train() {
  open_data();
  const LogScope on_first(world_.rank() == 0);
  const std::optional<std::string> why = why_no_graph(config_);
  if (why && config_.training.cuda_graph && !state_->stream.is_cpu()) {
    print_line(fmt::format("microbatches run without a CUDA graph, because of {}", *why));
  }
  const std::unique_ptr<const EmissionsReport> emissions =
      opened_report(config_, world_, state_->stream);
  const LogScope on_last(world_.rank() == world_.size() - 1);
  make_trainer()->run();
}

}  // namespace megatron
