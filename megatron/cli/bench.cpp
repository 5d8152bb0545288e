#include "megatron/cli/bench.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "megatron/cli/device_choice.h"
#include "megatron/cli/flag_table.h"
#include "megatron/cli/gpt_setup.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parallel_for.h"
#include "megatron/device/allocator.h"
#include "megatron/device/trace.h"
#include "megatron/training/flops.h"
#include "megatron/training/trainer.h"

namespace megatron::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Sizes that people compare: GPT-2 and GPT-3 shapes with the vocabulary of GPT-2, padded.
struct Workload {
  const char* name;
  int64_t num_layers;
  int64_t hidden_size;
  int64_t num_attention_heads;
  int64_t seq_length;
  int64_t micro_batch_size;
};
constexpr Workload kWorkloads[] = {
    {"tiny", 2, 64, 2, 64, 2},       {"124m", 12, 768, 12, 256, 4},
    {"345m", 24, 1024, 16, 1024, 4}, {"774m", 36, 1280, 20, 1024, 4},
    {"1.3b", 24, 2048, 16, 2048, 2}, {"1.5b", 48, 1600, 25, 1024, 2},
};
constexpr int64_t kVocabulary = 50304;

struct BenchFlags {
  std::string workload = "124m";
  int64_t steps = 8;
  int64_t warmup = 2;
  int64_t num_threads = 0;
  int64_t seq_length = 0;
  int64_t micro_batch_size = 0;
  int64_t num_microbatches = 1;
  int64_t num_layers = 0;
  bool bf16 = false;
  bool fp16 = false;
  bool allow_tf32 = false;
  bool deterministic_mode = false;
  bool deterministic_cost = false;
  bool breakdown = false;
  std::string device = "auto";
};

FlagTable flags_of(BenchFlags& flags) {
  FlagTable table;
  table.group("benchmark");
  table.add("--workload", flags.workload, "Model: tiny, 124m, 345m, 774m, 1.3b or 1.5b.");
  table.add("--steps", flags.steps, "Iterations to time; the median counts.");
  table.add("--warmup", flags.warmup, "Iterations before the timed ones.");
  table.add_switch("--bf16", flags.bf16, "Parameters in bfloat16.");
  table.add_switch("--fp16", flags.fp16, "Parameters in float16.");
  table.add_switch("--allow-tf32", flags.allow_tf32, "Products of fp32 on a GPU in TF32.");
  table.add_switch("--deterministic-mode", flags.deterministic_mode,
                   "Equal runs give equal bits, also where a faster way exists.");
  table.add_switch("--deterministic-cost", flags.deterministic_cost,
                   "Time the run again in deterministic mode and report what that costs.");
  table.add_switch("--breakdown", flags.breakdown,
                   "Time the kinds of work in as many iterations more.");
  table.add("--device", flags.device, "Where to compute: auto, cpu or cuda.");
  table.add_optional("--num-threads", flags.num_threads, "Threads of CPU kernels.");
  table.add_optional("--seq-length", flags.seq_length, "Instead of the workload's.");
  table.add_optional("--micro-batch-size", flags.micro_batch_size, "Instead of the workload's.");
  table.add("--num-microbatches", flags.num_microbatches, "Microbatches of an iteration.");
  table.add_optional("--num-layers", flags.num_layers, "Instead of the workload's.");
  return table;
}

const Workload& workload_named(const std::string& name) {
  for (const Workload& workload : kWorkloads) {
    if (workload.name == name) return workload;
  }
  std::string known;
  for (const Workload& workload : kWorkloads) known += fmt::format(" {}", workload.name);
  throw ConfigError(fmt::format("--workload {} is unknown; use one of:{}", name, known));
}

// The command line that trains the workload, so that bench measures what users run.
std::vector<std::string> training_flags_of(const BenchFlags& flags) {
  const Workload& workload = workload_named(flags.workload);
  const auto given = [](int64_t value, int64_t otherwise) {
    return std::to_string(value > 0 ? value : otherwise);
  };
  const std::string seq_length = given(flags.seq_length, workload.seq_length);
  const int64_t micro =
      flags.micro_batch_size > 0 ? flags.micro_batch_size : workload.micro_batch_size;
  std::vector<std::string> words = {"--mock-data"};
  const auto add = [&words](const char* flag, const std::string& value) {
    words.emplace_back(flag);
    words.push_back(value);
  };
  add("--num-layers", given(flags.num_layers, workload.num_layers));
  add("--hidden-size", std::to_string(workload.hidden_size));
  add("--num-attention-heads", std::to_string(workload.num_attention_heads));
  add("--seq-length", seq_length);
  add("--max-position-embeddings", seq_length);
  add("--micro-batch-size", std::to_string(micro));
  add("--global-batch-size", std::to_string(micro * flags.num_microbatches));
  add("--train-iters", std::to_string(2 * flags.steps + flags.warmup));
  add("--lr", "1e-4");
  add("--weight-decay", "0.1");
  add("--adam-beta2", "0.95");
  add("--attention-dropout", "0");
  add("--hidden-dropout", "0");
  add("--tokenizer-type", "NullTokenizer");
  add("--vocab-size", std::to_string(kVocabulary - 1));
  add("--device", flags.device);
  if (flags.num_threads > 0) add("--num-threads", std::to_string(flags.num_threads));

  if (flags.bf16) words.emplace_back("--bf16");
  if (flags.fp16) words.emplace_back("--fp16");
  if (flags.allow_tf32) words.emplace_back("--allow-tf32");
  if (flags.deterministic_mode) words.emplace_back("--deterministic-mode");
  return words;
}

// Next-token prediction on random tokens: never zeros, which some processors multiply faster.
class RandomTokensTask final : public TrainTask {
 public:
  RandomTokensTask(const GptModel& model, RandomState& random, int64_t micro_batch_size)
      : model_(model), random_(random), micro_batch_size_(micro_batch_size) {}

  bool has_split(Split split) const override { return split == Split::kTrain; }

  MicrobatchOutput forward_step(Split, int64_t, const Variable&) override {
    const Shape shape = {micro_batch_size_, model_.config().seq_length};
    const auto random_ids = [&] {
      std::uniform_int_distribution<int64_t> id(0, model_.config().padded_vocab_size - 1);
      std::vector<int64_t> ids(static_cast<size_t>(shape.numel()));
      for (int64_t& value : ids) value = id(generator_);
      return tensor_of(ids, shape);
    };
    const Tensor mask = full(shape, 1.0f, DType::kFloat32, {});
    const Variable loss = gpt_loss(model_, model_.hidden_states({.tokens = random_ids()}, random_),
                                   random_ids(), mask);
    return {loss, {{"lm loss", loss.data()}}};
  }

 private:
  const GptModel& model_;
  RandomState& random_;
  int64_t micro_batch_size_;
  std::mt19937_64 generator_{1234};
};

nlohmann::ordered_json memory_report(Device device) {
  constexpr double kMebibyte = 1024.0 * 1024.0;
  const auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / kMebibyte; };
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
  report["peak_rss_mib"] = static_cast<double>(usage.ru_maxrss) / 1024.0;
  return report;
}

// Seconds from the start of the process until now, to a hundredth; 0 where nobody says.
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

// Milliseconds of an iteration by kind of work, in `steps` more iterations. On a GPU the times are
// its own, and host is what no kernel that a range covers explains.
nlohmann::ordered_json breakdown(Trainer& trainer, Stream stream, int64_t steps) {
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
    report[name_of(kind)] = part * 1e3 / static_cast<double>(steps);
  }
  report["iteration"] = wall * 1e3 / static_cast<double>(steps);
  return report;
}

// Trains the workload and says how fast that was, and in how much memory.
nlohmann::ordered_json measured(const BenchFlags& flags) {
  const Clock::time_point started = Clock::now();
  TrainingArgs args = parse_training_args(training_flags_of(flags), ModelKind::kGpt, 1);
  args.transformer.padded_vocab_size = kVocabulary;
  nlohmann::ordered_json phases;  // seconds
  const double before_main = process_seconds();
  Clock::time_point phase = Clock::now();
  const auto end_phase = [&](const char* name) {
    const Clock::time_point now = Clock::now();
    phases[name] = std::chrono::duration<double>(now - phase).count();
    phase = now;
  };
  phases["process"] = before_main;
  chosen_device(args.training.device);
  end_phase("device");
  GptSetup setup(args);
  synchronize(setup.stream());
  end_phase("model");
  RandomTokensTask task(*setup.chunks().front(), setup.random(), args.training.micro_batch_size);
  Trainer trainer(setup.parts(task));

  // The time of an iteration is that between the arrivals of two results: on a GPU the host queues
  // the next iteration while one runs, as in training.
  std::vector<double> seconds;
  double first_step_at = 0;
  double loss = 0;
  int64_t num_finished = 0;
  Clock::time_point last = Clock::now();
  const auto take_time = [&] {
    const std::optional<FinishedIteration> finished = trainer.take_finished();
    if (!finished) return;
    const Clock::time_point now = Clock::now();
    loss = finished->result.losses.front().second;
    if (num_finished == 0) {
      first_step_at = std::chrono::duration<double>(now - started).count();
      end_phase("first_iteration");
    }
    if (num_finished >= flags.warmup) {
      seconds.push_back(std::chrono::duration<double>(now - last).count());
    }
    ++num_finished;
    last = now;
  };
  for (int64_t step = 0; step < flags.warmup + flags.steps; ++step) {
    trainer.train_step();
    if (step == 0) trainer.finish_step();  // the start is over when the first result is there
    take_time();
  }
  trainer.finish_step();
  take_time();
  if (seconds.empty()) throw ConfigError("--steps 0 times nothing; use at least 1");
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const int64_t batch = args.training.global_batch_size;

  nlohmann::ordered_json report;
  report["system"] = "megatron.cpp";
  report["workload"] = flags.workload;
  report["mode"] = name_of(args.transformer.params_dtype);
  report["device"] = setup.stream().device.str();
  report["threads"] = num_threads();
  report["parameters"] = num_parameters(*setup.chunks().front());
  report["tokens_per_second"] = static_cast<double>(batch * args.transformer.seq_length) / median;
  report["step_ms"] = median * 1000;
  report["tflops_standard"] = standard_flops(args.transformer, batch) / median / 1e12;
  report["tflops_causal"] = causal_flops(args.transformer, batch) / median / 1e12;
  report["start_to_first_step_s"] = first_step_at;
  report["start_s"] = phases;
  report["loss"] = loss;
  report.update(memory_report(setup.stream().device));
  if (flags.breakdown) report["breakdown_ms"] = breakdown(trainer, setup.stream(), flags.steps);
  return report;
}

}  // namespace

int bench(std::span<const std::string> argv) {
  BenchFlags flags;
  FlagTable table = flags_of(flags);
  const ParsedFlags parsed = table.parse(argv);
  if (parsed.wants_help) {
    print_line("usage: megatron bench [flags]\n\nTimes training on random tokens.\n" +
               table.help());
    return 0;
  }
  if (!parsed.problems.empty()) throw ConfigError(parsed.problems);

  nlohmann::ordered_json report = measured(flags);
  if (flags.deterministic_cost) {
    flags.deterministic_mode = true;
    flags.breakdown = false;
    const double without = report["step_ms"];
    const double with = measured(flags)["step_ms"];
    report["deterministic_step_ms"] = with;
    report["deterministic_cost_percent"] = 100 * (with / without - 1);
  }
  print_line(report.dump());
  return 0;
}

}  // namespace megatron::cli
