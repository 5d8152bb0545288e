#include "annex/deepspeed/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "annex/deepspeed/config_section.h"
#include "annex/deepspeed/relaxed_json.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;

// Keys of the top level that are settings of DeepSpeed's engine, or of its reports.
constexpr const char* kWithoutEffect[] = {"optimizer",
                                          "scheduler",
                                          "steps_per_print",
                                          "wall_clock_breakdown",
                                          "memory_breakdown",
                                          "dump_state",
                                          "prescale_gradients",
                                          "gradient_predivide_factor",
                                          "zero_allow_untested_optimizer",
                                          "zero_force_ds_cpu_optimizer",
                                          "activation_checkpointing",
                                          "pipeline",
                                          "data_types",
                                          "dataloader_drop_last",
                                          "disable_allgather",
                                          "flops_profiler",
                                          "tensorboard",
                                          "wandb",
                                          "csv_monitor",
                                          "comet",
                                          "comms_logger",
                                          "aio",
                                          "nebula",
                                          "seed",
                                          "torch_autocast",
                                          "tensor_parallel",
                                          "data_efficiency",
                                          "hybrid_engine",
                                          "graph_harvesting",
                                          "use_data_before_expert_parallelism"};

// Features that would change the training. With `enabled` they count only if it is true.
constexpr const char* kUnavailable[] = {"amp",
                                        "elasticity",
                                        "sparse_attention",
                                        "sparse_gradients",
                                        "eigenvalue",
                                        "progressive_layer_drop",
                                        "compression_training",
                                        "autotuning",
                                        "quantize_training"};

// Fields of zero_optimization for DeepSpeed's buckets and transfers of shards.
constexpr const char* kZeroIntegers[] = {"allgather_bucket_size",
                                         "reduce_bucket_size",
                                         "sub_group_size",
                                         "stage3_prefetch_bucket_size",
                                         "stage3_param_persistence_threshold",
                                         "stage3_model_persistence_threshold",
                                         "stage3_max_live_parameters",
                                         "stage3_max_reuse_distance",
                                         "prefetch_bucket_size",
                                         "param_persistence_threshold",
                                         "model_persistence_threshold",
                                         "max_live_parameters",
                                         "max_reuse_distance"};
constexpr const char* kZeroFlags[] = {"allgather_partitions",
                                      "overlap_comm",
                                      "reduce_scatter",
                                      "contiguous_gradients",
                                      "round_robin_gradients",
                                      "load_from_fp32_weights",
                                      "ignore_unused_parameters",
                                      "elastic_checkpoint",
                                      "legacy_stage1",
                                      "gather_16bit_weights_on_model_save",
                                      "stage3_gather_16bit_weights_on_model_save",
                                      "stage3_gather_fp16_weights_on_model_save",
                                      "cpu_offload_use_pin_memory"};

class ConfigReader {
 public:
  ConfigReader(const json& file, int64_t ranks, const AutoBatch& autos)
      : top_(file, "", problems_), ranks_(ranks), autos_(autos) {}

  DeepSpeedConfig read() {
    read_clipping();
    read_precision();
    read_zero();
    read_checkpoint();
    read_curriculum();
    read_rest();
    read_batches();
    return std::move(config_);
  }

  const std::vector<std::string>& problems() const { return problems_; }

 private:
  // A size of a batch; 0 if it is absent.
  int64_t batch(const char* key, int64_t automatic) {
    if (top_.is_auto(key)) {
      top_.take(key);
      return automatic;
    }
    if (top_.has(key) && top_.map().at(key).is_string()) {
      problems_.push_back(
          fmt::format("{} is {}; it must be an integer", key, shortened_json(top_.map().at(key))));
      top_.take(key);
      return 0;
    }
    return top_.integer(key, 1).value_or(0);
  }

  void read_batches() {
    const size_t before = problems_.size();
    int64_t train = batch("train_batch_size", autos_.global_batch_size);
    int64_t micro = batch("train_micro_batch_size_per_gpu", autos_.micro_batch_size);
    int64_t steps = batch("gradient_accumulation_steps", 0);
    if (problems_.size() > before) return;
    if (train == 0 && micro == 0) {
      problems_.emplace_back(
          "neither train_batch_size nor train_micro_batch_size_per_gpu is given; give one");
      return;
    }
    if (train > 0 && micro > 0 && steps == 0) {
      steps = train / micro / ranks_;
    } else if (train > 0 && micro == 0) {
      steps = std::max<int64_t>(steps, 1);
      micro = train / ranks_ / steps;
    } else if (train == 0) {
      steps = std::max<int64_t>(steps, 1);
      train = micro * steps * ranks_;
    }
    if (train != micro * steps * ranks_ || micro < 1 || steps < 1) {
      problems_.push_back(
          fmt::format("train_batch_size {} must be train_micro_batch_size_per_gpu {} times "
                      "gradient_accumulation_steps {} times {} data-parallel ranks",
                      train, micro, steps, ranks_));
    }
    config_.train_batch_size = train;
    config_.train_micro_batch_size_per_gpu = micro;
    config_.gradient_accumulation_steps = steps;
  }

  void read_clipping() {
    const char* const key = "gradient_clipping";
    config_.names_clipping = top_.has(key);
    if (top_.is_auto(key)) {
      top_.take(key);
      config_.gradient_clipping = std::nullopt;
    } else {
      config_.gradient_clipping = top_.number(key).value_or(0.0);
    }
    const auto type = top_.word("communication_data_type", {"fp16", "bfp16", "bf16", "fp32"});
    if (type) config_.without_effect.emplace_back("communication_data_type");
  }

  // The key `enabled` of a map; none means "auto".
  std::optional<bool> enabled(ConfigSection& section) {
    if (section.is_auto("enabled")) {
      section.take("enabled");
      return std::nullopt;
    }
    return section.flag("enabled").value_or(false);
  }

  void refuse_unknown(const ConfigSection& section) {
    for (const std::string& key : section.rest()) {
      problems_.push_back(fmt::format("{} is not a setting of DeepSpeed; remove it", key));
    }
  }

  void read_precision() {
    ConfigSection fp16 = top_.section("fp16");
    DeepSpeedFp16& half = config_.fp16;
    half.enabled = enabled(fp16);
    half.loss_scale = fp16.number("loss_scale").value_or(half.loss_scale);
    half.initial_scale_power =
        fp16.integer("initial_scale_power").value_or(half.initial_scale_power);
    half.loss_scale_window = fp16.integer("loss_scale_window", 1).value_or(half.loss_scale_window);
    half.hysteresis = fp16.integer("hysteresis", 1).value_or(half.hysteresis);
    half.min_loss_scale = fp16.number("min_loss_scale").value_or(half.min_loss_scale);
    for (const char* const key :
         {"auto_cast", "consecutive_hysteresis", "fp16_master_weights_and_grads"}) {
      if (!fp16.flag(key).value_or(false)) continue;
      keeps_fp16_masters_ |= std::string_view(key) == "fp16_master_weights_and_grads";
      config_.unavailable.push_back(fmt::format("{} is not available; remove it", fp16.path(key)));
    }
    for (const std::string& key : fp16.rest()) config_.unknown.push_back(key);

    ConfigSection bf16 = top_.section(top_.map().contains("bf16") ? "bf16" : "bfloat16");
    if (top_.map().contains("bf16") && top_.map().contains("bfloat16")) top_.take("bfloat16");
    config_.bf16 = enabled(bf16);
    for (const char* const key : {"immediate_grad_update", "check_grad_overflow",
                                  "bf16_master_weights_and_grads", "bf16_optimizer_states"}) {
      if (bf16.take(key)) config_.without_effect.push_back(bf16.path(key));
    }
    for (const std::string& key : bf16.rest()) config_.unknown.push_back(key);
    if (half.enabled == true && config_.bf16 == true) {
      problems_.emplace_back("fp16.enabled and bf16.enabled exclude each other; enable one");
    }
  }

  void read_zero() {
    const char* const key = "zero_optimization";
    if (top_.map().contains(key) && top_.map().at(key).is_boolean()) {  // an old form
      config_.zero_stage = top_.map().at(key).get<bool>() ? 1 : 0;
      top_.take(key);
    } else {
      read_zero_section();
    }
    if (keeps_fp16_masters_ && config_.zero_stage == 0) {
      problems_.emplace_back("fp16.fp16_master_weights_and_grads needs zero_optimization.stage 2");
    }
  }

  void read_zero_section() {
    ConfigSection zero = top_.section("zero_optimization");
    const size_t before = problems_.size();
    config_.zero_stage = zero.integer("stage").value_or(0);
    if (config_.zero_stage > 3 && problems_.size() == before) {
      problems_.push_back(fmt::format("zero_optimization.stage is {}; it must be 0, 1, 2 or 3",
                                      config_.zero_stage));
    }
    for (const char* const name : kZeroIntegers) {
      if (zero.integer(name)) config_.without_effect.push_back(zero.path(name));
    }
    for (const char* const name : kZeroFlags) {
      if (zero.flag(name)) config_.without_effect.push_back(zero.path(name));
    }
    if (zero.flag("cpu_offload").value_or(false)) config_.offloads_optimizer = true;
    for (const char* const name : {"offload_optimizer", "offload_param"}) read_offload(zero, name);
    for (const char* const name :
         {"zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients",
          "mics_shard_size", "mics_hierarchical_params_gather"}) {
      if (zero.take(name)) {
        config_.unavailable.push_back(
            fmt::format("{} is not available; remove it", zero.path(name)));
      }
    }
    refuse_unknown(zero);
  }

  void refuse_offload(const std::string& what) {
    config_.unavailable.push_back(
        fmt::format("{} is not available yet; remove it to keep the state on the GPU, or offload "
                    "the optimizer to cpu",
                    what));
  }

  void read_offload(ConfigSection& zero, const char* name) {
    if (!zero.has(name)) {
      zero.take(name);
      return;
    }
    ConfigSection offload = zero.section(name);
    if (offload.map().contains("device") && offload.map().at("device").is_null()) {
      problems_.push_back(
          fmt::format("{} is null; it must be one of none, cpu, nvme", offload.path("device")));
    }
    const std::string device = offload.word("device", {"none", "cpu", "nvme"}).value_or("none");
    offload.word("nvme_path");
    for (const char* const key : {"buffer_count", "buffer_size", "max_in_cpu"}) {
      offload.integer(key);
    }
    for (const char* const key : {"pin_memory", "pipeline_read", "pipeline_write", "fast_init",
                                  "pipeline", "super_offload", "cpuadam_cores_perc"}) {
      offload.take(key);
    }
    offload.number("ratio");
    refuse_unknown(offload);
    if (device == "none") return;
    if (device == "cpu" && std::string_view(name) == "offload_optimizer") {
      config_.offloads_optimizer = true;
    } else {
      refuse_offload(offload.path("device") + " " + device);
    }
  }

  void read_checkpoint() {
    ConfigSection checkpoint = top_.section("checkpoint");
    std::string validation = checkpoint.word("tag_validation").value_or("WARN");
    std::transform(validation.begin(), validation.end(), validation.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (validation != "WARN" && validation != "IGNORE" && validation != "FAIL") {
      problems_.push_back(fmt::format(
          "checkpoint.tag_validation is {}; it must be one of WARN, IGNORE, FAIL", validation));
    }
    config_.loads_universal = checkpoint.flag("load_universal").value_or(false);
    for (const std::string& key : checkpoint.rest()) config_.without_effect.push_back(key);
  }

  void read_curriculum() {
    ConfigSection section = top_.section("curriculum_learning");
    if (!section.flag("enabled").value_or(false)) return;
    const std::string metric = section.word("curriculum_type").value_or("seqlen");
    const std::string schedule = section.word("schedule_type").value_or("");
    const bool is_root = schedule == "fixed_linear" || schedule == "fixed_root";
    if (metric != "seqlen" || (!is_root && schedule != "fixed_discrete")) {
      config_.unavailable.push_back(fmt::format(
          "curriculum_learning with curriculum_type \"{}\" and schedule_type \"{}\" is not "
          "available; use seqlen, with fixed_linear, fixed_root or fixed_discrete",
          metric, schedule));
      return;
    }
    CurriculumConfig& c = config_.curriculum;
    c.schedule = is_root ? CurriculumSchedule::kRoot : CurriculumSchedule::kDiscrete;
    c.min_length = section.integer("min_difficulty", 1).value_or(0);
    c.max_length = section.integer("max_difficulty", 1).value_or(0);
    ConfigSection details = section.section("schedule_config");
    if (is_root) {
      c.num_iterations = details.integer("total_curriculum_step", 1).value_or(0);
      c.length_step = details.integer("difficulty_step", 1).value_or(0);
      if (schedule == "fixed_root") c.degree = details.number("root_degree").value_or(0);
    } else {
      c.lengths = details.integers("difficulty");
      c.last_iterations = details.integers("max_step");
    }
  }

  void read_rest() {
    for (const char* const key : kWithoutEffect) {
      if (top_.take(key)) config_.without_effect.emplace_back(key);
    }
    for (const char* const key : kUnavailable) {
      if (!top_.take(key)) continue;
      const json& value = top_.map().at(key);
      const bool is_switched_off =
          value.is_object() && value.contains("enabled") && value.at("enabled") == false;
      if (!is_switched_off) {
        config_.unavailable.push_back(fmt::format("{} is not available; remove it", key));
      }
    }
    for (const char* const key :
         {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
      top_.take(key);
    }
    for (const std::string& key : top_.rest()) config_.unknown.push_back(key);
  }

  std::vector<std::string> problems_;
  ConfigSection top_;
  int64_t ranks_;
  const AutoBatch& autos_;
  bool keeps_fp16_masters_ = false;
  DeepSpeedConfig config_;
};

// The bytes of a text in base64, ordinary or for URLs; empty if it is none.
std::string from_base64(const std::string& text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    if (c == '=') break;
    if (c == '-') c = '+';
    if (c == '_') c = '/';
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return "";
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>((bits >> count) & 0xFFU);
    }
  }
  return bytes;
}

}  // namespace

DeepSpeedConfig deepspeed_config_of(const json& file, const std::string& source,
                                    int64_t data_parallel_size, const AutoBatch& autos) {
  if (!file.is_object()) {
    throw ConfigError(fmt::format(
        "{}: holds no map of keys and values, such as {{\"train_batch_size\": 8}}", source));
  }
  ConfigReader reader(file, data_parallel_size, autos);
  DeepSpeedConfig config = reader.read();
  if (reader.problems().empty()) return config;
  std::vector<std::string> problems;
  for (const std::string& problem : reader.problems()) {
    problems.push_back(fmt::format("{}: {}", source, problem));
  }
  throw ConfigError(problems);
}

json load_deepspeed_json(const std::string& path_or_text) {
  if (!std::filesystem::exists(path_or_text)) {
    const std::string text = from_base64(path_or_text);
    if (text.starts_with('{')) return read_relaxed_json(text, "--deepspeed_config");
  }
  return read_relaxed_json(read_text(path_or_text), path_or_text);
}

}  // namespace megatron::frontends
