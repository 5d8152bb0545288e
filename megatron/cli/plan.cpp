#include "megatron/cli/plan.h"
#include "megatron/cli/launcher_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "megatron/cli/model_flags.h"
#include "megatron/cli/planned_args.h"
#include "megatron/cli/workloads.h"
#include "megatron/comm/share_threads.h"
#include "megatron/core/error.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/log.h"
#include "megatron/core/parallel_for.h"
#include "megatron/device/cuda.h"
#include "megatron/device/free_memory.h"
#include "megatron/device/stream.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/model_chunks.h"
#include "megatron/models/model_specs.h"
#include "megatron/models/plan/traffic.h"
#include "megatron/models/plan/update_work.h"
#include "megatron/parallel/tensor/rounded_linear.h"
#include "megatron/run/cheapest_recomputation.h"
#include "megatron/run/faster_stages.h"
#include "megatron/run/memory_check.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/flops.h"
#include "megatron/training/gpu_roof.h"
#include "megatron/training/step_estimate.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron::cli {
namespace {

struct PlanFlags {
  std::string workload;
  std::string load;
  ModelKind kind = {};
  int64_t world_size = 1;
  std::string gpu;
  InferenceWeights weights = InferenceWeights::kModel;
  KvCacheType kv_cache = KvCacheType::kModel;
  int64_t cache_tokens = 0;
  double fit = 0;
  bool json = false;
};

FlagTable flags_of(PlanFlags& flags) {
  FlagTable table;
  table.group("plan");
  table.add("--workload", flags.workload, "A known model: " + workload_names() + ".");
  table.add_optional("--load", flags.load,
                     "A checkpoint or Hugging Face folder whose model is planned, at its longest "
                     "sequence unless --seq-length is given; no effect beside --num-layers.");
  add_model_type(table, flags.kind,
                 "The kind of model; default: that of the workload or of --load.");
  table.add("--world-size", flags.world_size, "Ranks of the run.");
  table.add("--gpu", flags.gpu,
            "The GPU to plan for: " + gpu_names() +
                ". Default: this machine's, or else h200, whose times were measured; times of "
                "other GPUs are scaled by their peak rates.");
  add_inference_weights(table, flags.weights);
  add_kv_cache_dtype(table, flags.kv_cache);
  table.add("--cache-tokens", flags.cache_tokens,
            "Tokens of a GPT server's KV cache; prints the memory of the cache.");
  table.add("--fit", flags.fit,
            "GiB of a device: plans with the recomputation of least estimated time that needs no "
            "more, if necessary with --optimizer-cpu-offload, and prints the flags. 0: with those "
            "given.");
  table.add_switch("--json", flags.json, "One JSON object instead of tables.");
  return table;
}

struct Plan {
  TrainingArgs args;
  DeviceType device = DeviceType::kCpu;
  const GpuRoof* gpu = &measured_gpu();
  bool is_for_this_gpu = false;  // that of this machine, not one of --gpu
  std::vector<RankMemory> stages;
  std::vector<Traffic> traffic;
  std::vector<Traffic> exposed;  // part of `traffic`
  StepEstimate time;
  int64_t num_parameters = 0;
  int64_t num_microbatches = 1;
  int64_t batch = 1;
  std::optional<FasterStages> faster_stages;
  double fit = 0;         // GiB; 0: none
  std::string fit_flags;  // that make it fit
  InferenceWeights weights = InferenceWeights::kModel;
  int64_t inference_bytes = 0;  // of the parameters of all stages, for a tensor-parallel rank
  // The same for the KV cache of generation; 0 except for a GPT.
  KvCacheType kv_cache = KvCacheType::kModel;
  int64_t cache_bytes_per_token = 0;
  int64_t cache_tokens = 0;

  const TransformerConfig& model() const { return args.transformer; }
  size_t largest() const {
    const auto less = [](const RankMemory& a, const RankMemory& b) {
      return a.total_bytes() < b.total_bytes();
    };
    return static_cast<size_t>(std::max_element(stages.begin(), stages.end(), less) -
                               stages.begin());
  }
};

// The GPU of --gpu, of this machine, or of the measurements.
const GpuRoof& chosen_gpu(const std::string& flag) {
  if (const GpuRoof* const named = gpu_roof(flag)) return *named;
  if (num_cuda_devices() == 0) return measured_gpu();
  const std::string here = cuda::properties(0).name;
  if (const GpuRoof* const gpu = gpu_roof_of_device(here)) return *gpu;
  warn(fmt::format("the peak rates of {} are not known: the plan is for an {}; --gpu names another",
                   here, measured_gpu().name));
  return measured_gpu();
}

// Changes the planned run. Throws ConfigError if nothing lowers it enough.
void fit_run(Plan& plan) {
  const auto bytes = static_cast<int64_t>(plan.fit * static_cast<double>(1 << 30));
  const std::optional<FittedRun> way = cheapest_fit(plan.args, plan.device, bytes, *plan.gpu);
  if (way) {
    way->apply_to(plan.args);
    plan.fit_flags = way->flags();
    return;
  }
  const std::vector<std::string> ways = remedies(plan.args, plan.device, bytes);
  throw ConfigError(fmt::format("--fit {}: no recomputation lowers a rank to that many GiB; {}",
                                plan.fit,
                                ways.empty() ? "use more ranks, a smaller model or --seq-length"
                                             : fmt::format("use {}", fmt::join(ways, "; or "))));
}

// Memory that a rank may use.
struct Room {
  int64_t bytes = 0;  // below 0: not known
  std::string where;
};

Room room_of(const Plan& plan) {
  if (plan.fit > 0) return {static_cast<int64_t>(plan.fit * (1 << 30)), "of --fit"};
  if (plan.device == DeviceType::kCpu) {
    const auto ranks = static_cast<int64_t>(plan.args.parallel.world_size);
    const int64_t here = free_memory_bytes(Device{});
    return {here < 0 ? here : here / ranks,
            ranks == 1 ? "free here" : fmt::format("free here for each of {} ranks", ranks)};
  }
  if (plan.is_for_this_gpu) {
    return {free_memory_bytes({.type = DeviceType::kCuda}), "free on a GPU here"};
  }
  constexpr double kFree = 0.98;  // a driver and its context take the rest
  return {static_cast<int64_t>(plan.gpu->gibibytes * kFree * (1 << 30)),
          fmt::format("free on an idle {}", plan.gpu->name)};
}

Plan plan_of(TrainingArgs args, const PlanFlags& flags) {
  Plan plan;
  plan.args = std::move(args);
  plan.weights = flags.weights;
  const int64_t tensor_ranks = plan.args.parallel.tensor_model_parallel_size;
  plan.inference_bytes = parameter_bytes(model_specs(plan.model()), plan.weights, tensor_ranks);
  plan.kv_cache = flags.kv_cache;
  plan.cache_tokens = flags.cache_tokens;
  if (is_decoder_only(flags.kind)) {
    plan.cache_bytes_per_token = kv_cache_bytes_per_token(plan.model(), plan.model().num_layers,
                                                          tensor_ranks, plan.kv_cache);
  }
  // A plan for GPUs needs no GPU; auto selects the device that training on this machine would use,
  // or the named GPU.
  const DeviceChoice choice = plan.args.training.device;
  const bool has_gpu =
      choice == DeviceChoice::kCuda ||
      (choice == DeviceChoice::kAuto && (!flags.gpu.empty() || num_cuda_devices() > 0));
  plan.device = has_gpu ? DeviceType::kCuda : DeviceType::kCpu;
  if (has_gpu) plan.gpu = &chosen_gpu(flags.gpu);
  plan.is_for_this_gpu = has_gpu && flags.gpu.empty() && num_cuda_devices() > 0;
  plan.fit = flags.fit;
  if (flags.fit > 0) fit_run(plan);
  const PlannedTraining training = planned_training(plan.args, plan.device);
  plan.num_microbatches = training.num_microbatches;
  plan.batch = plan.args.training.global_batch_size;
  plan.num_parameters = num_model_parameters(plan.model());
  std::vector<DryIteration> iterations;
  for (int64_t stage = 0; stage < training.num_stages(); ++stage) {
    iterations.push_back(dry_iteration(training, stage));
    plan.stages.push_back(rank_memory(training, stage, iterations.back()));
    plan.traffic.push_back(traffic(training, stage, iterations.back()));
    plan.exposed.push_back(exposed_traffic(training, stage, iterations.back()));
  }
  plan.time = estimated_step(
      plan.model(), plan.args.parallel, training.micro_batch_size, training.num_microbatches,
      update_work(training, iterations[plan.largest()]), plan.device,
      kCpuFlopsPerThread * num_threads(),
      {.exposed_bytes = plan.exposed[plan.largest()].total(),
       .exposed_transfers = plan.exposed[plan.largest()].transfers,
       .hidden_transfers =
           plan.traffic[plan.largest()].transfers - plan.exposed[plan.largest()].transfers,
       .beside_attention = sent_beside_attention(training, static_cast<int64_t>(plan.largest()))},
      *plan.gpu, plan.args.data.reset_attention_mask);
  const int64_t room = room_of(plan).bytes;
  plan.faster_stages = faster_stages(
      plan.args, plan.device, room < 0 ? std::numeric_limits<int64_t>::max() : room, *plan.gpu);
  return plan;
}

// The model of a checkpoint, in place of flags.
void take_model(TrainingArgs& args, const CheckpointSource& source) {
  take_architecture(args, source);
  TokenizerConfig& tokenizer = args.tokenizer;
  const bool has_tokenizer = !tokenizer.tokenizer_type.empty() || !tokenizer.vocab_file.empty() ||
                             !tokenizer.tokenizer_model.empty() || tokenizer.vocab_size > 0;
  if (source.hf() == nullptr || has_tokenizer) return;
  tokenizer.tokenizer_type = "NullTokenizer";
  tokenizer.vocab_size = source.hf()->vocab_size - 1;  // it adds the end of document
}

int64_t tokens_per_sample(const TransformerConfig& c) {
  return c.seq_length + (c.is_encoder_decoder() ? c.decoder_seq_length : 0);
}

double gibibytes_of(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::vector<std::pair<const char*, double>> times_of(const StepEstimate& time) {
  return {{"linear layers", time.linear},
          {"output layer", time.head},
          {"attention", time.attention},
          {"elementwise", time.elementwise},
          {"recomputation", time.recompute},
          {"copies to the host", time.host_copies},
          {"optimizer", time.optimizer},
          {"pipeline bubble", time.bubble},
          {"exposed communication", time.communication}};
}

void print_run(const Plan& plan) {
  const TransformerConfig& c = plan.model();
  const ParallelConfig& p = plan.args.parallel;
  print_line(fmt::format(
      "model     {} parameters ({:.3f} billion): {} layers, hidden {}, ffn {}, {} heads, sequence "
      "{}, vocabulary {}, {}",
      plan.num_parameters, static_cast<double>(plan.num_parameters) / 1e9, c.num_layers,
      c.hidden_size, c.ffn_hidden_size, c.num_attention_heads, c.seq_length, c.padded_vocab_size,
      name_of(c.params_dtype)));
  if (c.is_encoder_decoder()) {
    print_line(fmt::format("decoder   {} layers, sequence {}", c.decoder_num_layers,
                           c.decoder_seq_length));
  }
  print_line(
      fmt::format("layout    {} ranks: tensor {}{}, pipeline {}{}, context {}, data {}{}{}",
                  p.world_size, p.tensor_model_parallel_size,
                  p.sequence_parallel ? " with sequence" : "", p.pipeline_model_parallel_size,
                  p.virtual_pipeline_model_parallel_size > 1
                      ? fmt::format(" of {} chunks", p.virtual_pipeline_model_parallel_size)
                      : "",
                  p.context_parallel_size, p.data_parallel_size,
                  p.num_distributed_optimizer_instances > 1
                      ? fmt::format(" in {} instances", p.num_distributed_optimizer_instances)
                      : "",
                  p.zero_stage >= 2             ? fmt::format(" with ZeRO stage {}", p.zero_stage)
                  : p.use_distributed_optimizer ? " with the distributed optimizer"
                                                : ""));
  print_line(fmt::format("batch     {} samples: micro-batch {} x {} microbatches x data {}",
                         plan.batch, plan.args.training.micro_batch_size, plan.num_microbatches,
                         p.data_parallel_size));
  if (plan.fit == 0) return;
  print_line(fmt::format("fit       {} GiB with {}", plan.fit,
                         plan.fit_flags.empty() ? "no recomputation" : plan.fit_flags));
}

// Whether the largest rank fits, and what would make it fit.
void print_verdict(const Plan& plan) {
  const int64_t needs = needed_bytes(plan.stages[plan.largest()], plan.device);
  const Room room = room_of(plan);
  if (room.bytes < 0) return;
  if (needs <= room.bytes) {
    return print_line(fmt::format("fits: a rank needs {} of the {} {}", size_text(needs),
                                  size_text(room.bytes), room.where));
  }
  const std::vector<std::string> ways = remedies(plan.args, plan.device, room.bytes / 100 * 96);
  print_line(fmt::format("does not fit: a rank needs {}, and {} are {}; {}", size_text(needs),
                         size_text(room.bytes), room.where,
                         ways.empty() ? "use more ranks, a smaller model or --seq-length"
                                      : fmt::format("use {}", fmt::join(ways, "; or "))));
}

void print_memory(const Plan& plan) {
  constexpr double kBarWidth = 30;
  const RankMemory& memory = plan.stages[plan.largest()];
  const auto total = static_cast<double>(memory.total_bytes());
  const bool is_small = total < (1 << 30);
  const double unit = is_small ? 1 << 20 : 1 << 30;
  print_line(fmt::format("\nmemory of a rank{} on {}, peak at {}: {}",
                         plan.stages.size() > 1 ? fmt::format(" of stage {}", plan.largest()) : "",
                         plan.device == DeviceType::kCpu ? "the CPU" : "a GPU", memory.peak_at,
                         is_small ? "MiB" : "GiB"));
  const auto print_row = [&](std::string_view category, const MemoryUse& row, double of) {
    const auto bytes = static_cast<double>(row.bytes);
    if (bytes / unit < 0.0005) return;  // it would show as 0.000
    const auto length = static_cast<size_t>(std::lround(kBarWidth * bytes / of));
    const std::string_view gap = length > 0 ? "  " : "";
    print_line(fmt::format("  {:<12} {:<40} {:>10.3f}{}{}", category, row.purpose, bytes / unit,
                           gap, std::string(length, '#')));
  };
  for (const MemoryUse& row : memory.rows) print_row(name_of(row.category), row, total);
  print_line(fmt::format("  {:<53} {:>10.3f}", "total", total / unit));
  for (const MemoryUse& row : memory.host_rows) {
    print_row("host memory", row, static_cast<double>(memory.host_bytes()));
  }
  print_verdict(plan);
  print_line(fmt::format(
      "parameters for inference, all stages together{}: {:.3f} GiB",
      plan.weights == InferenceWeights::kModel ? "" : fmt::format(", in {}", name_of(plan.weights)),
      gibibytes_of(plan.inference_bytes)));
  if (plan.cache_bytes_per_token > 0) {
    std::string line = fmt::format(
        "keys and values for generation, all stages together{}: {:.2f} KiB a token",
        plan.kv_cache == KvCacheType::kModel ? "" : fmt::format(", in {}", name_of(plan.kv_cache)),
        static_cast<double>(plan.cache_bytes_per_token) / 1024);
    if (plan.cache_tokens > 0) {
      line += fmt::format(", {:.3f} GiB for --cache-tokens {}",
                          gibibytes_of(plan.cache_tokens * plan.cache_bytes_per_token),
                          plan.cache_tokens);
    }
    print_line(line);
  }
  if (plan.stages.size() == 1) return;
  print_line("\nstage   layers   parameters   in flight   total GiB   peak");
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const RankMemory& stage = plan.stages[i];
    print_line(fmt::format("{:>5} {:>8} {:>12} {:>11.2f} {:>11.3f}   {}", i, stage.num_layers,
                           stage.num_parameters, stage.microbatches_in_flight,
                           gibibytes_of(stage.total_bytes()), stage.peak_at));
  }
}

void print_work(const Plan& plan) {
  const int64_t ranks = plan.args.parallel.world_size;
  const double seconds = plan.time.total();
  const double flops = standard_flops(plan.model(), plan.batch);
  print_line(fmt::format("\nFLOPs of an iteration: {:.4e} as Megatron-LM counts, {:.4e} causal",
                         flops, causal_flops(plan.model(), plan.batch)));
  print_line(fmt::format(
      "about {:.4g} s an iteration on {}: {:.0f} tokens/s, {:.1f} TFLOP/s a rank", seconds,
      plan.device == DeviceType::kCpu
          ? fmt::format("{} CPU threads of {:.0f} GFLOP/s", num_threads(), kCpuFlopsPerThread / 1e9)
          : fmt::format("{} GPUs{}", plan.gpu->name,
                        plan.gpu == &measured_gpu() ? "" : " (from H200's times and peak rates)"),
      static_cast<double>(plan.batch * tokens_per_sample(plan.model())) / seconds,
      tflops_per_device(flops, seconds, ranks)));
  for (const auto& [what, part] : times_of(plan.time)) {
    if (part > 0) print_line(fmt::format("  {:<22} {:>6.1f} %", what, 100 * part / seconds));
  }
  if (ranks == 1) return;
  if (plan.faster_stages) {
    print_line(fmt::format("{:.1f} % less time: {}", 100 * plan.faster_stages->saved,
                           plan.faster_stages->flags()));
  }
  const auto print_traffic = [](const char* what, const Traffic& t) {
    std::vector<std::string> parts;
    const auto add = [&](const char* group, int64_t bytes) {
      if (bytes > 0) parts.push_back(fmt::format("{} {:.3f}", group, gibibytes_of(bytes)));
    };
    add("data parallel", t.data_parallel);
    add("across instances", t.across_instances);
    add("tensor parallel", t.tensor_parallel);
    add("expert parallel", t.expert_parallel);
    add("context parallel", t.context_parallel);
    add("pipeline", t.pipeline_parallel);
    if (!parts.empty()) print_line(fmt::format("{}, GiB: {}", what, fmt::join(parts, ", ")));
  };
  print_traffic("a rank sends in an iteration", plan.traffic[plan.largest()]);
  print_traffic("of that not overlapped", plan.exposed[plan.largest()]);
}

nlohmann::ordered_json json_of(const Plan& plan) {
  nlohmann::ordered_json report;
  report["parameters"] = plan.num_parameters;
  report["device"] = plan.device == DeviceType::kCpu ? "cpu" : "cuda";
  if (plan.device == DeviceType::kCuda) report["gpu"] = plan.gpu->name;
  report["world_size"] = plan.args.parallel.world_size;
  report["global_batch_size"] = plan.batch;
  report["num_microbatches"] = plan.num_microbatches;
  if (plan.fit > 0) {
    report["recompute_flags"] = recompute_flags(plan.model());
    report["fit_flags"] = plan.fit_flags;
  }
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const RankMemory& memory = plan.stages[i];
    nlohmann::ordered_json stage;
    stage["parameters"] = memory.num_parameters;
    stage["layers"] = memory.num_layers;
    stage["microbatches_in_flight"] = memory.microbatches_in_flight;
    stage["peak_at"] = memory.peak_at;
    stage["total_bytes"] = memory.total_bytes();
    for (const MemoryUse& row : memory.rows) {
      stage["rows"].push_back(
          {{"category", name_of(row.category)}, {"what", row.purpose}, {"bytes", row.bytes}});
    }
    for (const MemoryUse& row : memory.host_rows) {
      stage["host_rows"].push_back({{"what", row.purpose}, {"bytes", row.bytes}});
    }
    const auto bytes_of = [](const Traffic& t) {
      return nlohmann::ordered_json{
          {"data_parallel", t.data_parallel},       {"across_instances", t.across_instances},
          {"tensor_parallel", t.tensor_parallel},   {"expert_parallel", t.expert_parallel},
          {"context_parallel", t.context_parallel}, {"pipeline_parallel", t.pipeline_parallel}};
    };
    stage["sent_bytes"] = bytes_of(plan.traffic[i]);
    stage["exposed_bytes"] = bytes_of(plan.exposed[i]);
    report["stages"].push_back(std::move(stage));
  }
  report["inference_parameter_bytes"] = plan.inference_bytes;
  if (plan.cache_bytes_per_token > 0) {
    report["kv_cache_bytes_per_token"] = plan.cache_bytes_per_token;
    report["kv_cache_bytes"] = plan.cache_tokens * plan.cache_bytes_per_token;
  }
  report["flops_standard"] = standard_flops(plan.model(), plan.batch);
  report["flops_causal"] = causal_flops(plan.model(), plan.batch);
  report["bubble"] = plan.time.bubble / plan.time.total();
  if (plan.faster_stages) {
    report["faster_stages"] = {{"flags", plan.faster_stages->flags()},
                               {"saved", plan.faster_stages->saved}};
  }
  report["seconds"] = plan.time.total();
  for (const auto& [what, part] : times_of(plan.time)) report["seconds_by_part"][what] = part;
  return report;
}

bool has_sizes(std::span<const std::string> words) {
  return std::ranges::any_of(words, [](const std::string& word) {
    return word == "--num-layers" || word.starts_with("--num-layers=");
  });
}

}  // namespace

int plan(std::span<const std::string> argv) {
  std::vector<std::string> words(argv.begin(), argv.end());
  PlanFlags flags;
  FlagTable table = flags_of(flags);
  const ParsedFlags own = table.parse(table.take_own(words));
  if (!flags.load.empty() && !flags.workload.empty()) {
    throw ConfigError("--load and --workload exclude each other: each names a model; give one");
  }
  if (!flags.workload.empty()) {
    flags.kind = workload_kind(flags.workload);
    words = workload_command(flags.workload, words);
  }
  std::vector<std::string> problems = own.problems;
  CheckpointSource source;
  // The --load of a training's flags, which have the sizes too, may not exist yet.
  if (!flags.load.empty() && !has_sizes(words)) {
    source = find_source(model_path(flags.load, "--load"), 0, true);
    flags.kind = source.kind();
  }
  TrainingArgs args = parsed_flags(words, flags.kind, problems);
  if (args.wants_help) {
    print_line(
        "usage: megatron plan [flags of pretrain-gpt] [flags]\n\nNeeds --workload, --load, or the "
        "sizes of a model: --num-layers, --hidden-size, --num-attention-heads and "
        "--seq-length.\n" +
        table.help());
    return 0;
  }
  if (flags.world_size < 1) {
    problems.push_back(fmt::format("--world-size {} must be at least 1", flags.world_size));
  }
  if (flags.fit < 0) {
    problems.push_back(fmt::format("--fit {} must be at least 0", flags.fit));
  }
  if (flags.cache_tokens < 0) {
    problems.push_back(fmt::format("--cache-tokens {} must be at least 0", flags.cache_tokens));
  }
  if (!flags.gpu.empty() && gpu_roof(flags.gpu) == nullptr) {
    problems.push_back(fmt::format("--gpu {} is not known; use one of {}", flags.gpu, gpu_names()));
  }
  apply_deepspeed_flags(args, std::max<int64_t>(flags.world_size, 1), problems);
  if (source.exists()) take_model(args, source);
  fill_for_plan(args);
  args = resolved(std::move(args), std::max<int64_t>(flags.world_size, 1), problems);
  if (flags.fit > 0 && args.transformer.recompute_granularity != RecomputeGranularity::kNone) {
    problems.emplace_back(
        "--fit chooses the recomputation; remove --recompute-granularity or --fit");
  }
  if (problems.empty()) problems = layout_problems(args.transformer, args.parallel);
  if (!problems.empty()) throw ConfigError(problems);
  for (const std::string& warning : args.warnings) warn(warning);
  find_vocabulary(args);
  comm::use_threads(args.training.num_threads);

  const Plan plan = plan_of(std::move(args), flags);
  if (flags.json) {
    print_line(json_of(plan).dump());
    return 0;
  }
  print_run(plan);
  print_memory(plan);
  print_work(plan);
  return 0;
}

}  // namespace megatron::cli
