#include "megatron/cli/bench.h"
#include "megatron/cli/launcher_settings.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/cli/bench_generation.h"
#include "megatron/cli/random_task.h"
#include "megatron/cli/workloads.h"
#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parallel_for.h"
#include "megatron/device/allocator.h"
#include "megatron/device/cuda.h"
#include "megatron/device/free_memory.h"
#include "megatron/device/trace.h"
#include "megatron/run/agreement.h"
#include "megatron/run/collectively.h"
#include "megatron/run/device_choice.h"
#include "megatron/run/memory_check.h"
#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/flops.h"
#include "megatron/training/gpu_roof.h"
#include "megatron/training/trainer.h"

namespace megatron::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchFlags {
  std::string workload = "124m";
  int64_t steps = 8;
  int64_t warmup = 2;
  int64_t num_microbatches = 1;
  bool deterministic_cost = false;
  bool breakdown = false;
  std::string csv;
  GenerationBenchFlags generation;
  std::vector<std::string> training;  // flags of pretrain-gpt
};

FlagTable flags_of(BenchFlags& flags) {
  FlagTable table;
  table.group("benchmark");
  table.add("--workload", flags.workload, "Model: " + workload_names() + ".");
  table.add("--steps", flags.steps, "Timed iterations; reports their median.");
  table.add("--warmup", flags.warmup, "Warm-up iterations.");
  table.add("--num-microbatches", flags.num_microbatches,
            "Microbatches of an iteration, on each data parallel rank.");
  table.add_switch("--deterministic-cost", flags.deterministic_cost,
                   "Also time deterministic mode, and report its cost.");
  table.add_switch("--breakdown", flags.breakdown,
                   "Also time kinds of work and exposed communication, in as many additional "
                   "iterations, op by op.");
  table.add_optional("--csv", flags.csv,
                     "CSV file to append the results to; a new file gets a header, an existing one "
                     "must have the same.");
  add_generation_flags(table, flags.generation);
  return table;
}

// The training run of the workload, resolved as for users.
TrainingArgs training_args_of(const BenchFlags& flags, const comm::Group& world) {
  std::vector<std::string> words = {
      "--train-iters",  std::to_string(2 * flags.steps + flags.warmup),
      "--weight-decay", "0.1",
      "--adam-beta2",   "0.95"};
  words.insert(words.end(), flags.training.begin(), flags.training.end());
  const ModelKind kind = workload_kind(flags.workload);
  words = workload_command(flags.workload, words);

  std::vector<std::string> problems;
  TrainingArgs asked = parsed_flags(words, kind, problems);
  apply_deepspeed_flags(asked, world.size(), problems);
  if (!asked.given.contains("global_batch_size") && problems.empty()) {
    ParallelConfig parallel = asked.parallel;
    parallel.world_size = world.size();
    const int64_t dp = std::max<int64_t>(1, resolved(parallel).data_parallel_size);
    words.emplace_back("--global-batch-size");
    words.push_back(std::to_string(asked.training.micro_batch_size * flags.num_microbatches * dp));
  }
  problems.clear();
  TrainingArgs args = parsed_flags(words, kind, problems);
  apply_deepspeed_flags(args, world.size(), problems);
  args = resolved(std::move(args), world.size(), problems);
  for (std::string& problem : unavailable(args)) problems.push_back(std::move(problem));
  expect_agreement(args, problems, world);
  for (const std::string& warning : args.warnings) warn(warning);
  args.transformer.padded_vocab_size = padded_vocab_size(
      make_tokenizer(args.tokenizer)->vocab_size(), args.transformer.make_vocab_size_divisible_by,
      args.parallel.tensor_model_parallel_size);
  return args;
}

// The reduction of one number per rank.
double over_ranks(double number, comm::Reduce how, const comm::Group& world) {
  Tensor one = tensor_of(std::vector<double>{number}, {1});
  comm::all_reduce(one.view(), how, world, Stream{});
  return one.item();
}
double largest(double number, const comm::Group& world) {
  return over_ranks(number, comm::Reduce::kMax, world);
}
double mean(double number, const comm::Group& world) {
  return over_ranks(number, comm::Reduce::kSum, world) / world.size();
}

// The maximum over ranks of each entry.
nlohmann::ordered_json memory_report(Device device, const comm::Group& world) {
  const auto mebibytes = [&](int64_t bytes) {
    return largest(static_cast<double>(bytes), world) / (1024.0 * 1024.0);
  };
  const MemoryStats stats = allocator_of(device).stats();
  nlohmann::ordered_json report;
  report["peak_allocated_mib"] = mebibytes(stats.peak_allocated_bytes);
  report["peak_reserved_mib"] = mebibytes(stats.peak_reserved_bytes);
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    report[fmt::format("peak_{}_mib", name_of(category))] =
        mebibytes(stats.peak_by_category[static_cast<size_t>(i)]);
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  report["peak_rss_mib"] = mebibytes(usage.ru_maxrss * 1024);
  return report;
}

// Seconds since the start of the process, to a hundredth; 0 if unknown.
double process_seconds() {
  std::ifstream stat("/proc/self/stat");
  std::ifstream uptime("/proc/uptime");
  std::string word;
  double now = 0;
  // The start is field 22; the name of the program, field 2, has no spaces.
  for (int field = 1; field <= 22; ++field) stat >> word;
  if (!stat || !(uptime >> now)) return 0;
  return now - std::stod(word) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Milliseconds of an iteration by kind of work, measured in `steps` more iterations; means over all
// ranks. On a GPU these are GPU times; host is the time without kernels of any range.
nlohmann::ordered_json breakdown(Trainer& trainer, Stream stream, int64_t steps,
                                 const comm::Group& world) {
  Tracer tracer;
  synchronize(stream);
  const Clock::time_point begin = Clock::now();
  {
    const TraceScope scope(&tracer);
    for (int64_t step = 0; step < steps; ++step) trainer.train_step();
    trainer.finish_step();
  }
  synchronize(stream);
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  std::map<WorkKind, double> seconds = tracer.seconds_by_kind();
  double& host = seconds[WorkKind::kHost];
  host = 0;
  double covered = 0;
  for (const auto& [kind, part] : seconds) covered += part;
  host = wall - covered;
  nlohmann::ordered_json report;
  for (const auto& [kind, part] : seconds) {
    report[name_of(kind)] = mean(part * 1e3 / static_cast<double>(steps), world);
  }
  report["iteration"] = mean(wall * 1e3 / static_cast<double>(steps), world);
  return report;
}

// FLOP/s of the GPU's bf16 products at its peak; nothing if unknown.
std::optional<double> peak_flops(Device device) {
  if (device.is_cpu()) return std::nullopt;
  const GpuRoof* const gpu = gpu_roof_of_device(cuda::properties(device.index).name);
  if (gpu == nullptr) return std::nullopt;
  return gpu->matmul_flops;
}

// Trains the workload and reports its speed and memory.
nlohmann::ordered_json measured(const BenchFlags& flags, const comm::Group& world) {
  const Clock::time_point started = Clock::now();
  const TrainingArgs args = training_args_of(flags, world);
  nlohmann::ordered_json phases;  // seconds
  const double before_main = process_seconds();
  Clock::time_point phase = Clock::now();
  const auto end_phase = [&](const char* name) {
    const Clock::time_point now = Clock::now();
    phases[name] = std::chrono::duration<double>(now - phase).count();
    phase = now;
  };
  phases["process"] = before_main;
  warn_of_device(args.training.device, world);
  const Device device = chosen_device(args.training.device, world);
  end_phase("device");
  expect_to_fit(args, device, free_memory_bytes(device));
  const std::unique_ptr<OwnedStream> stream = open_stream(args.training, world);
  const std::unique_ptr<TrainTask> made = random_task(args);
  TrainTask& task = *made;
  TrainingState state(args, task, world, stream->get());
  synchronize(state.stream);
  end_phase("model");
  task.open_data(state.progress);
  Trainer trainer(args, task, state);

  // On a GPU the host queues the next iteration while one runs, as in training.
  std::vector<double> seconds;
  double first_step_at = 0;
  double loss = std::numeric_limits<double>::lowest();  // the last stage has it
  int64_t num_finished = 0;
  const auto take_time = [&] {
    const std::optional<FinishedIteration> finished = trainer.take_finished();
    if (!finished) return;
    if (!finished->result.losses.empty()) loss = finished->result.losses.front().second;
    if (num_finished == 0) {
      first_step_at = std::chrono::duration<double>(Clock::now() - started).count();
      end_phase("first_iteration");
    }
    if (num_finished >= flags.warmup) seconds.push_back(finished->result.seconds);
    ++num_finished;
  };
  for (int64_t step = 0; step < flags.warmup + flags.steps; ++step) {
    trainer.train_step();
    if (step == 0) trainer.finish_step();  // the start ends with the first result
    take_time();
  }
  trainer.finish_step();
  take_time();
  if (seconds.empty()) throw ConfigError("--steps 0 must be at least 1");
  std::sort(seconds.begin(), seconds.end());
  const double median = largest(seconds[seconds.size() / 2], world);
  const int64_t batch = args.training.global_batch_size;
  const double tokens = static_cast<double>(batch * task.tokens_per_sample()) / median;
  const ParallelConfig& parallel = args.parallel;

  nlohmann::ordered_json report;
  report["system"] = "megatron.cpp";
  report["workload"] = flags.workload;
  report["mode"] = name_of(args.transformer.params_dtype);
  report["device"] = state.stream.device.str();
  report["threads"] = num_threads();
  report["parameters"] = num_model_parameters(args.transformer);
  report["ranks"] = world.size();
  report["tensor_parallel"] = parallel.tensor_model_parallel_size;
  report["pipeline_parallel"] = parallel.pipeline_model_parallel_size;
  report["context_parallel"] = parallel.context_parallel_size;
  report["data_parallel"] = parallel.data_parallel_size;
  report["global_batch_size"] = batch;
  report["tokens_per_second"] = tokens;
  report["tokens_per_second_per_rank"] = tokens / world.size();
  report["step_ms"] = median * 1000;
  report["tflops_standard"] = task.flops(batch) / median / 1e12;
  report["tflops_causal"] = causal_flops(args.transformer, batch) / median / 1e12;
  if (const std::optional<double> peak = peak_flops(device)) {
    report["gpu"] = cuda::properties(device.index).name;
    report["percent_of_peak"] =
        100 * report["tflops_causal"].get<double>() * 1e12 / (*peak * world.size());
  }
  report["cuda_graph"] = trainer.has_recorded_microbatch();
  report["start_to_first_step_s"] = first_step_at;
  report["start_s"] = phases;
  report["loss"] = largest(loss, world);
  report.update(memory_report(state.stream.device, world));
  if (flags.breakdown) {
    const nlohmann::ordered_json parts = breakdown(trainer, state.stream, flags.steps, world);
    const auto percent = [&](const char* part) {
      return 100 * parts[part].get<double>() / parts["iteration"].get<double>();
    };
    report["breakdown_ms"] = parts;
    report["exposed_communication_percent"] = percent("communication");
    report["waiting_for_stages_percent"] = percent("pipeline");
  }
  return report;
}

// The names and values of a report as lines of a csv file; parts of an object get its name, too.
std::array<std::string, 2> csv_lines(const nlohmann::ordered_json& report) {
  std::array<std::string, 2> lines;
  const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
    lines[0] += (lines[0].empty() ? "" : ",") + name;
    lines[1] += (lines[1].empty() ? "" : ",") + value.dump();
  };
  for (const auto& [name, value] : report.items()) {
    if (!value.is_object()) {
      add(name, value);
      continue;
    }
    for (const auto& [part, number] : value.items()) add(fmt::format("{}.{}", name, part), number);
  }
  return lines;
}

// The first line of a file; empty if there is no such file.
std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Appends the values to a file that has these columns, or to a new one.
void append_to_csv(const std::string& path, const nlohmann::ordered_json& report) {
  const auto [names, values] = csv_lines(report);
  const std::string there = first_line_of(path);
  if (!there.empty() && there != names) {
    throw ConfigError(fmt::format(
        "--csv {}: has the columns {}, and this run has {}; nothing was added. Name another file",
        path, there, names));
  }
  std::ofstream file(path, std::ios::app);
  if (there.empty()) file << names << '\n';
  file << values << std::endl;
  if (!file) throw IoError(fmt::format("--csv {}: cannot be written", path));
}

void print_report(const BenchFlags& flags, const nlohmann::ordered_json& report,
                  const comm::Group& world) {
  print_line(report.dump());
  if (!flags.csv.empty() && world.rank() == 0) append_to_csv(flags.csv, report);
}

}  // namespace

int bench(std::span<const std::string> argv, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  BenchFlags flags;
  FlagTable table = flags_of(flags);
  flags.training.assign(argv.begin(), argv.end());
  const ParsedFlags parsed = table.parse(table.take_own(flags.training));
  if (!parsed.problems.empty()) throw CommonConfigError(parsed.problems);
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (std::any_of(flags.training.begin(), flags.training.end(), is_help)) {
    print_line(
        "usage: megatron bench [flags] [flags of pretrain-gpt]\n\nTimes training on random tokens, "
        "or "
        "generation. Flags of pretrain-gpt change the workload:\n--bf16, --device cuda, "
        "--num-layers 4, "
        "--tensor-model-parallel-size 2 (after megatron launch).\n" +
        table.help());
    return 0;
  }

  if (flags.generation.rows > 0) {
    nlohmann::ordered_json report =
        measured_generation(flags.generation, training_args_of(flags, world), world);
    report["workload"] = flags.workload;
    print_report(flags, report, world);
    return 0;
  }
  nlohmann::ordered_json report = measured(flags, world);
  if (flags.deterministic_cost) {
    flags.training.emplace_back("--deterministic-mode");
    flags.breakdown = false;
    const double without = report["step_ms"];
    const double with = measured(flags, world)["step_ms"];
    report["deterministic_step_ms"] = with;
    report["deterministic_cost_percent"] = 100 * (with / without - 1);
  }
  print_report(flags, report, world);
  return 0;
}

}  // namespace megatron::cli
