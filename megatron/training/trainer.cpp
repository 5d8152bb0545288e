#include "megatron/training/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parallel_for.h"
#include "megatron/core/turns.h"
#include "megatron/device/trace.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/training/replica_check.h"
#include "megatron/training/signals.h"
#include "megatron/training/step_estimate.h"

namespace megatron {
namespace {

std::string kill_switch_text(const TrainingConfig& config) {
  return datetime_text(
      fmt::format("exiting program: the kill switch {} exists", config.kill_switch_path));
}

// "lm loss 3.2500": the first loss after `done` of `all` parts of a mean.
std::string running_text(const NamedValues& means, int64_t all, int64_t done) {
  if (means.empty()) return {};
  const auto& [name, value] = means.front();
  return fmt::format("{} {:.4f}", name,
                     value * static_cast<double>(all) / static_cast<double>(done));
}

bool is_due(int64_t interval, int64_t iteration) {
  return interval > 0 && iteration % interval == 0;
}

}  // namespace

Trainer::Trainer(const RunConfig& config, TrainTask& task, TrainingState& state,
                 const TrainerOptions& options)
    : run_(config),
      config_(config.training),
      task_(task),
      state_(state),
      options_(options),
      train_iters_(train_iters_of(config_)),
      overlaps_microbatches_(config.parallel.overlap_microbatches &&
                             task.may_overlap_microbatches()),
      log_(run_, train_iters_, state.progress, state.stream.device, state.parallel.world.size(),
           state.parallel.world.rank() == state.parallel.world.size() - 1),
      profile_(config_, state.parallel.world, state.stream.device, config.checkpoint.save),
      began_(state.stream.device),
      ended_(state.stream.device) {
  began_.record(state.stream);
  if (config_.log_progress && !run_.checkpoint.save.empty() && log_.is_kept()) {
    progress_file_.emplace(std::filesystem::path(run_.checkpoint.save) / "progress.txt",
                           state.parallel.world.size(), state.progress);
  }
  const bool records = options.records_microbatches.value_or(
      !state.stream.is_cpu() && config_.cuda_graph && !why_no_graph(run_));
  if (config_.curriculum.is_on()) curriculum_.emplace(config_.curriculum);
  if (records) graph_.emplace(task, state.random, state.stream);
  if (config.parallel.overlap_microbatches && !overlaps_microbatches_) {
    warn(
        fmt::format("--overlap-microbatches has no effect: this task of {} has functions for one "
                    "microbatch at a time",
                    task.model_name()));
  }
  if (config_.log_straggler && !config_.disable_straggler_on_startup) {
    stragglers_.emplace(state.parallel, state.stream, config_.straggler_minmax_count);
  }
  if (config_.calculate_per_token_loss && !task.weighs_tokens()) {
    throw ConfigError(
        fmt::format("--calculate-per-token-loss: this task of {} has no tokens that its loss "
                    "counts one by one; "
                    "remove the flag",
                    task.model_name()));
  }
}

void Trainer::run() {
  if (!begin()) return;
  while (iterate()) {
  }
  end();
}

bool Trainer::begin() {
  if (config_.exit_signal_handler) signals_.emplace();
  has_left_ = false;
  if (is_killed()) {
    log_.line(kill_switch_text(config_));
    signals_.reset();
    return false;
  }
  if (config_.skip_train) return true;
  log_.line("training ...");
  log_.line(datetime_text("before the start of training step"));
  if (config_.check_weight_hash_across_dp_replicas_interval > 0) compare_replicas();
  began_.record(state_.stream);
  if (log_.is_kept()) {
    notice_.emplace(SlowNotice::Options{.first_iteration = state_.progress.iteration,
                                        .last_iteration = train_iters_,
                                        .log_interval = config_.log_interval,
                                        .least_seconds = least_seconds()},
                    print_line);
  }
  return true;
}

bool Trainer::iterate() {
  if (config_.skip_train || has_left_ || state_.progress.iteration >= train_iters_) return false;
  try {
    if (is_killed()) {
      save();
      log_.line(kill_switch_text(config_));
      has_left_ = true;
      return false;
    }
    finish_save(false);
    const int64_t before = state_.microbatches.num_microbatches();
    state_.microbatches.update(state_.progress.consumed_train_samples, false);
    const bool has_grown = state_.microbatches.num_microbatches() != before;
    if (has_grown && state_.progress.iteration != 0)
      save();  // the last state with the smaller batch
    state_.microbatches.update(state_.progress.consumed_train_samples, true);

    profile_.before_iteration(state_.progress.iteration);
    const bool was_recorded = has_recorded_microbatch();
    train_step();
    profile_.after_iteration(state_.progress.iteration);
    log_finished();
    report_stragglers();
    if (notice_) notice_->finished(state_.progress.iteration);
    if (has_recorded_microbatch() && !was_recorded) {
      log_.line("microbatches are replayed as one CUDA graph from here on");
    }
    has_left_ = finish_iteration();
  } catch (...) {
    // Log finished work before reporting the error.
    try {
      settle();
    } catch (const Error&) {
      // The first failure is the one to report.
    }
    throw;
  }
  return !has_left_ && state_.progress.iteration < train_iters_;
}

void Trainer::end() {
  if (!config_.skip_train) {
    settle();
    report_stragglers();
    notice_.reset();
    profile_.finish();
    if (!has_left_) {
      log_.line(datetime_text("after training is done"));
      if (state_.progress.iteration != 0) save();
    }
    finish_save(true);
    if (has_left_) return signals_.reset();
  }

  const std::string prefix = fmt::format("iteration {} on ", state_.progress.iteration);
  if (config_.repeat_last_evaluation || last_evaluated_ != state_.progress.iteration) {
    evaluate_and_print(Split::kValid, prefix + "validation set", true);
  }
  evaluate_and_print(Split::kTest, prefix + "test set", true);
  signals_.reset();
}

double Trainer::least_seconds() const {
  if (!state_.stream.is_cpu()) return 0;
  const auto threads = static_cast<double>(state_.parallel.world.size() * num_threads());
  return task_.flops(state_.microbatches.global_batch_size()) / (threads * kCpuFlopsPerThread);
}

void Trainer::train_step() {
  const TraceRange range("iteration");
  Progress& progress = state_.progress;
  QueuedIteration next;
  next.num_microbatches = state_.microbatches.num_microbatches();
  IterationResult& result = next.known.result;
  result.global_batch_size = state_.microbatches.global_batch_size();
  if (curriculum_) {
    result.sequence_length = curriculum_->length_at(progress.iteration + 1);
    task_.use_sequence_length(*result.sequence_length);
  }
  result.tokens = result.global_batch_size * task_.tokens_per_sample();
  result.floating_point_operations = task_.flops(result.global_batch_size);
  if (stragglers_) stragglers_->count_iteration(result.floating_point_operations);

  next.is_trained = std::find(config_.iterations_to_skip.begin(), config_.iterations_to_skip.end(),
                              progress.iteration + 1) == config_.iterations_to_skip.end();
  state_.random.set_training(next.is_trained);
  state_.parameters.zero_grads();
  next.num_losses = next.num_microbatches * state_.parallel.data.size();
  log_.timers().start("forward-backward", 1);
  state_.gradients.begin(next.num_microbatches);
  std::optional<NoGrad> no_grad;
  if (!next.is_trained) no_grad.emplace();
  state_.fp8.quantize_weights();
  LossSums losses =
      run_microbatches(Split::kTrain, next.num_microbatches,
                       next.is_trained ? state_.optimizer.loss_seed(next.num_losses) : Tensor());
  no_grad.reset();
  if (next.is_trained) {
    state_.fp8.finish_iteration(progress.iteration);
    next.of_experts = state_.routers.finish_iteration();
  }
  losses.reduce(state_.parallel.data);
  log_.timers().stop("forward-backward", 1);
  next.losses = losses.names();
  next.num_sums = losses.sums().defined() ? static_cast<size_t>(losses.sums().numel()) : 0;

  finish_step();  // the previous one: rates and bias corrections depend on its update
  if (next.is_trained) {
    log_.timers().start("all-grads-sync", 1);
    state_.gradients.finish();
    log_.timers().stop("all-grads-sync", 1);
    const TimerScope timer(log_.timers(), "optimizer", 1);
    // Like the check in Megatron-LM's loss function: without a loss scaler a NaN is an error.
    next.must_have_numbers =
        config_.check_for_nan_in_loss_and_grad && state_.optimizer.loss_scale() == 1.0;
    state_.optimizer.queue_step(state_.scheduler.rates(),
                                {.losses = next.must_have_numbers ? losses.sums() : Tensor(),
                                 .measures_parameters = config_.log_params_norm,
                                 .weight = weight_of(losses),
                                 .num_microbatches = next.num_losses});
    state_.gradients.gather_parameters();
  } else if (config_.log_params_norm) {
    result.params_norm = state_.optimizer.parameter_norm();
  }
  if (losses.sums().defined()) {
    const Tensor& sums = losses.sums();
    if (!loss_sums_ || loss_sums_->bytes() != sums.bytes()) {
      loss_sums_.emplace(sums.bytes(), sums.stream().device);
    }
    loss_sums_->start(sums.view().data, sums.stream());
  }
  ended_.record(state_.stream);

  progress.iteration += 1;
  progress.consumed_train_samples += result.global_batch_size;
  progress.floating_point_operations += result.floating_point_operations;
  next.known.progress = progress;
  if (curriculum_) result.consumed_tokens = consumed_tokens(progress);
  queued_ = std::move(next);
  if (state_.stream.is_cpu()) finish_step();
}

int64_t Trainer::consumed_tokens(const Progress& progress) const {
  return curriculum_ ? curriculum_->tokens_after(progress.iteration) * config_.global_batch_size
                     : progress.consumed_train_samples * task_.tokens_per_sample();
}

int64_t Trainer::first_sequence_of(int64_t microbatch) const {
  const ParallelContext& parallel = state_.parallel;
  const int64_t sample =
      state_.progress.consumed_train_samples +
      (microbatch * parallel.num_replicas() + parallel.replica()) * config_.micro_batch_size;
  return sample * task_.sequences_per_sample();
}

LossSums Trainer::run_microbatches(Split split, int64_t num_microbatches, const Tensor& seed) {
  if (seed.defined() && graph_) return train_through_graph(num_microbatches, seed);
  task_.use_loss_seed(seed);
  const ParallelContext& parallel = state_.parallel;
  PipelineShape shape =
      pipeline_shape(run_.parallel, parallel.pipeline.rank(),
                     static_cast<int64_t>(state_.chunks.size()), num_microbatches);
  shape.overlaps_microbatches = overlaps_microbatches_;
  StragglerLog* const stragglers = seed.defined() && stragglers_ ? &*stragglers_ : nullptr;
  const auto read = [&](const PipelineStep& step) {
    const StragglerLog::Scope scope(stragglers, StragglerLog::Work::kRead);
    return task_.get_batch(split, step.chunk).to(state_.stream);
  };
  const auto run_forward = [&](const PipelineStep& step, const Activations& activations) {
    const TimerScope timer(log_.timers(), "forward-compute", 2);
    const PoolScope scope(graph_ ? &graph_->pool() : nullptr);
    state_.random.set_first_sample(first_sequence_of(step.microbatch));
    const Microbatch batch = read(step);
    const StragglerLog::Scope computing(stragglers, StragglerLog::Work::kCompute);
    return task_.forward_step(split, step.chunk, batch, activations);
  };
  LossSums losses;
  StageWork work;
  work.forward = [&](const PipelineStep& step, const Activations& activations) -> ChunkOutput {
    MicrobatchOutput made = run_forward(step, activations);
    losses.add(made);
    return {std::move(made.activations), std::move(made.losses)};
  };
  const auto num_parts = static_cast<double>(shape.chunks * num_microbatches);
  int64_t num_done = 0;
  if (seed.defined()) {
    work.backward = [&](const ChunkOutput& output, const Grads& gradients) {
      const TimerScope timer(log_.timers(), "backward-compute", 2);
      const StragglerLog::Scope computing(stragglers, StragglerLog::Work::kCompute);
      run_backward(output, gradients, seed);
      ++num_done;
      if (notice_) notice_->advanced(static_cast<double>(num_done) / num_parts);
    };
    work.weight = [&](DelayedGradients& gradients) {
      const TimerScope timer(log_.timers(), "backward-compute", 2);
      const StragglerLog::Scope computing(stragglers, StragglerLog::Work::kCompute);
      gradients.run();
    };
  }
  const OwnInTurn<RandomState> random(state_.random);
  const TimersInTurns timers(log_.timers());
  const StragglerLog::InTurns passes(stragglers);
  run_pipeline(seed.defined() ? training_steps(shape) : evaluation_steps(shape), shape,
               parallel.links, task_.boundaries(), state_.stream, work);
  return losses;
}

LossSums Trainer::train_through_graph(int64_t num_microbatches, const Tensor& seed) {
  LossSums losses;
  StragglerLog* const stragglers = stragglers_ ? &*stragglers_ : nullptr;
  for (int64_t i = 0; i < num_microbatches; ++i) {
    if (i + 1 == num_microbatches) state_.gradients.begin(1);
    const Microbatch batch = [&] {
      const StragglerLog::Scope scope(stragglers, StragglerLog::Work::kRead);
      return task_.get_batch(Split::kTrain, 0);
    }();
    const StragglerLog::Scope computing(stragglers, StragglerLog::Work::kCompute);
    losses.add(
        graph_->run(batch, first_sequence_of(i), seed,
                    state_.gradients.is_quiet(i, num_microbatches) && state_.fp8.is_settled()));
  }
  return losses;
}

Tensor Trainer::weight_of(const LossSums& losses) const {
  if (!config_.calculate_per_token_loss) return {};
  const comm::Group& pipeline = state_.parallel.pipeline;
  Tensor own = losses.weight();
  if (!own.defined() && losses.sums().defined()) {
    throw ConfigError(
        "--calculate-per-token-loss: this task divides its losses by a number of its own; remove "
        "it");
  }
  if (pipeline.size() == 1) return own;
  Tensor weight = own.defined() ? copied(own) : zeros({1}, DType::kFloat32, state_.stream);
  comm::all_reduce(weight.view(), comm::Reduce::kSum, pipeline, state_.stream);
  return weight;
}

int Trainer::highest_on_ranks(int number) const {
  if (state_.parallel.world.size() == 1) return number;
  Tensor highest = full({1}, static_cast<float>(number), DType::kFloat32, Stream{});
  comm::all_reduce(highest.view(), comm::Reduce::kMax, state_.parallel.world, Stream{});
  return static_cast<int>(highest.item());
}

bool Trainer::on_any_rank(bool condition) const { return highest_on_ranks(condition ? 1 : 0) > 0; }

void Trainer::finish_step() {
  if (!queued_) return;
  const QueuedIteration iteration = *std::exchange(queued_, std::nullopt);
  const int64_t number = iteration.known.progress.iteration;
  FinishedIteration finished = iteration.known;
  IterationResult& result = finished.result;
  if (!iteration.losses.empty()) {
    const auto* sums = reinterpret_cast<const float*>(loss_sums_->wait());
    result.losses = means_of(iteration.losses, {sums, iteration.num_sums}, iteration.num_losses);
  }
  for (const auto& [name, value] : result.losses) {
    if (!iteration.must_have_numbers || !std::isnan(value)) continue;
    throw Error(fmt::format(
        "iteration {}: {} is not a number; lower --lr, look at the data around sample {}, or "
        "pass --no-check-for-nan-in-loss-and-grad to continue",
        number, name, finished.progress.consumed_train_samples - result.global_batch_size));
  }

  if (!result.losses.empty()) {
    const NamedValues& auxiliary = iteration.of_experts.losses;
    result.losses.insert(result.losses.end(), auxiliary.begin(), auxiliary.end());
  }
  result.of_layers = iteration.of_experts.of_layers;

  result.is_skipped = true;
  if (iteration.is_trained) {
    try {
      const StepResult step = state_.optimizer.finish_step();
      result.is_skipped = result.overflows = !step.ok;
      result.grad_norm = step.grad_norm;
      result.params_norm = step.parameter_norm;
      if (step.num_zeros) result.num_zeros = static_cast<double>(*step.num_zeros);
    } catch (const NotFiniteError& error) {
      throw NotFiniteError(fmt::format("iteration {}: {}", number, error.what()));
    }
  }
  if (!result.is_skipped) state_.scheduler.advance(result.global_batch_size);
  result.learning_rate = state_.scheduler.rates().lr;
  result.loss_scale = state_.optimizer.loss_scale();
  ended_.synchronize();
  result.seconds = ended_.ms_since(began_) * 1e-3;
  std::swap(began_, ended_);
  finished_ = std::move(finished);
}

std::optional<FinishedIteration> Trainer::take_finished() {
  return std::exchange(finished_, std::nullopt);
}

void Trainer::log_finished() {
  if (!finished_) return;
  logged_ = take_finished();
  log_.iteration(logged_->progress, logged_->result);
}

void Trainer::report_stragglers() {
  if (!stragglers_ || !logged_ || logged_->progress.iteration == stragglers_reported_) return;
  if (!is_due(config_.log_interval, logged_->progress.iteration)) return;
  stragglers_reported_ = logged_->progress.iteration;
  const StragglerLog::Report report = stragglers_->report();
  for (const std::string& line : report.lines) log_.line(line);
  if (!report.warning.empty()) warn(report.warning);
}

const std::optional<FinishedIteration>& Trainer::settle() {
  finish_step();
  log_finished();
  return logged_;
}

void Trainer::compare_replicas() {
  settle();
  expect_equal_replicas(state_);
  // Compat: the words of Megatron-LM of 2026.
  log_.line(
      fmt::format(">>> Weight hashes match after {} iterations...", state_.progress.iteration));
}

bool Trainer::finish_iteration() {
  const int64_t iteration = state_.progress.iteration;

  if (is_due(config_.check_weight_hash_across_dp_replicas_interval, iteration)) compare_replicas();
  if (is_due(config_.eval_interval, iteration) && config_.eval_iters > 0) {
    settle();
    evaluate_and_print(Split::kValid, fmt::format("iteration {}", iteration), false);
    began_.record(state_.stream);
  }
  const int signal = config_.exit_signal_handler ? highest_on_ranks(ExitSignals::received()) : 0;
  if (signal != 0) {
    settle();
    save();
    log_.line(
        datetime_text(fmt::format("exiting program after receiving {}.", name_of_signal(signal))));
    return true;
  }
  const bool ends_epoch = task_.ends_epoch(state_.progress);
  if (ends_epoch) settle();
  if (ends_epoch || is_due(run_.checkpoint.save_interval, iteration)) save();
  if (is_due(run_.checkpoint.non_persistent_save_interval, iteration)) save_locally();
  if (ends_epoch) {
    task_.epoch_ended(state_.progress);
    began_.record(state_.stream);
  }
  if (config_.exit_duration_in_mins > 0 && on_any_rank(is_out_of_time())) {
    settle();
    save();
    const auto elapsed = std::chrono::steady_clock::now() - options_.started;
    log_.line(
        datetime_text(fmt::format("exiting program after {} minutes",
                                  std::chrono::duration<double, std::ratio<60>>(elapsed).count())));
    return true;
  }
  if (is_due(config_.exit_interval, iteration)) {
    settle();
    save();
    log_.line(datetime_text(fmt::format("exiting program at iteration {}", iteration)));
    return true;
  }
  return false;
}

NamedValues Trainer::evaluate(Split split) {
  return evaluate(split, false).value_or(NamedValues());
}

NamedValues Trainer::evaluate_step(Split split) {
  prepare_evaluation();
  return evaluated_batch(split);
}

void Trainer::prepare_evaluation() {
  state_.random.set_training(false);
  state_.fp8.quantize_weights();
  if (curriculum_) task_.use_sequence_length(run_.transformer.seq_length);
}

NamedValues Trainer::evaluated_batch(Split split) {
  const NoGrad no_grad;
  const int64_t num_microbatches = state_.microbatches.final_num_microbatches();
  LossSums losses = run_microbatches(split, num_microbatches, Tensor());
  losses.reduce(state_.parallel.data);
  if (split == Split::kValid) {
    state_.progress.consumed_valid_samples += state_.microbatches.schedule().final_batch_size();
  }
  return losses.means(num_microbatches * state_.parallel.data.size());
}

std::optional<NamedValues> Trainer::evaluate(Split split, bool is_verbose) {
  const TimerScope timer(log_.timers(), "evaluate", 0);
  prepare_evaluation();
  const int64_t samples = state_.microbatches.schedule().final_batch_size();
  if (is_verbose) log_.line(fmt::format("Evaluating on {} samples", config_.eval_iters * samples));
  NamedValues means;
  EvaluationProgress progress = log_.evaluation_progress(config_.eval_iters);
  for (int64_t i = 0; i < config_.eval_iters; ++i) {
    for (const auto& [name, value] : evaluated_batch(split)) {
      value_of(means, name) += value / static_cast<double>(config_.eval_iters);
    }
    progress.update(i + 1, running_text(means, config_.eval_iters, i + 1));
    if (config_.exit_duration_in_mins > 0 && on_any_rank(is_out_of_time())) {
      log_.line("Exiting during evaluation, timelimit reached");
      return std::nullopt;
    }
  }
  return means;
}

void Trainer::evaluate_and_print(Split split, const std::string& prefix, bool is_verbose) {
  if (config_.eval_iters == 0 || !task_.has_split(split)) return;
  const std::vector<std::string> groups = task_.groups(split);
  for (size_t i = 0; i < groups.size(); ++i) {
    task_.use_group(split, i);
    if (!evaluate_group(split, groups[i], prefix, is_verbose)) return;
  }
  if (split == Split::kValid) last_evaluated_ = state_.progress.iteration;
}

bool Trainer::evaluate_group(Split split, const std::string& name, const std::string& prefix,
                             bool is_verbose) {
  const std::optional<NamedValues> losses = evaluate(split, is_verbose);
  if (!losses) return false;
  const std::string times = log_.timers().report({"evaluate"}, 1);
  if (!times.empty()) log_.line(times);
  log_.validation(state_.progress, name, prefix, *losses);
  task_.evaluated(split, state_.progress, *losses);
  return true;
}

void Trainer::save() {
  if (options_.saver == nullptr || last_saved_ == state_.progress.iteration) return;
  settle();
  finish_save(true);  // the previous one
  log_.timers().start("save-checkpoint", 0);
  log_.line(saving_text(state_.progress.iteration, run_.checkpoint.save));
  const bool is_complete = options_.saver->save();
  last_saved_ = state_.progress.iteration;
  if (is_complete) {
    note_saved(state_.progress);
  } else {
    saving_ = state_.progress;
    log_.line(scheduled_text(state_.progress.iteration, run_.checkpoint.save));
  }
  log_.timers().stop("save-checkpoint", 0);
  const std::string times = log_.timers().report({"save-checkpoint"}, 1);
  if (!times.empty()) log_.line(times);
  began_.record(state_.stream);
}

void Trainer::save_locally() {
  constexpr const char* kTimer = "save-checkpoint-non-persistent";
  const bool is_saved = last_saved_ == state_.progress.iteration && !saving_;
  if (options_.local_saver == nullptr || is_saved) return;
  settle();
  log_.timers().start(kTimer, 0);
  options_.local_saver->save();
  log_.timers().stop(kTimer, 0);
  const std::string times = log_.timers().report({kTimer}, 1);
  if (!times.empty()) log_.line(times);
  began_.record(state_.stream);
}

void Trainer::finish_save(bool waits) {
  if (saving_ && options_.saver->finish(waits)) note_saved(*std::exchange(saving_, std::nullopt));
}

void Trainer::note_saved(const Progress& progress) {
  if (progress_file_) progress_file_->saved_checkpoint(progress, consumed_tokens(progress));
  log_.line(saved_text(progress.iteration, run_.checkpoint.save));
}

bool Trainer::is_killed() const {
  const std::string& path = config_.kill_switch_path;
  return !path.empty() && on_any_rank(std::filesystem::exists(path));
}

bool Trainer::is_out_of_time() const {
  const auto elapsed = std::chrono::steady_clock::now() - options_.started;
  return elapsed > std::chrono::minutes(config_.exit_duration_in_mins);
}

}  // namespace megatron
