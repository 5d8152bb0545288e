#include "annex/accelerate/launch_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <span>

#include "annex/accelerate/plugin_settings.h"
#include "megatron/core/error.h"
#include "megatron/core/number_text.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;

// A setting of a map of the file, the option of the same meaning, and the variable that carries it.
struct Exported {
  const char* name;
  const char* variable;
  const char* otherwise = nullptr;  // the value if nobody sets it; null: not exported
};

constexpr Exported kMegatron[] = {
    {"megatron_lm_tp_degree", "MEGATRON_LM_TP_DEGREE", "1"},
    {"megatron_lm_pp_degree", "MEGATRON_LM_PP_DEGREE", "1"},
    {"megatron_lm_gradient_clipping", "MEGATRON_LM_GRADIENT_CLIPPING", "1.0"},
    {"megatron_lm_num_micro_batches", "MEGATRON_LM_NUM_MICRO_BATCHES"},
    {"megatron_lm_sequence_parallelism", "MEGATRON_LM_SEQUENCE_PARALLELISM"},
    {"megatron_lm_recompute_activations", "MEGATRON_LM_RECOMPUTE_ACTIVATIONS"},
    {"megatron_lm_use_distributed_optimizer", "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER"},
};

constexpr Exported kDeepSpeed[] = {
    {"zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE"},
    {"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
    {"gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING"},
    {"offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"},
    {"offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"},
    {"zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT"},
    {"zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"},
    {"deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE"},
};

constexpr Exported kDynamo[] = {
    {"dynamo_backend", "ACCELERATE_DYNAMO_BACKEND", "NO"},
    {"dynamo_mode", "ACCELERATE_DYNAMO_MODE", "default"},
    {"dynamo_use_fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
    {"dynamo_use_dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
};

// As Python prints it.
std::string text_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float()) return python_repr(value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string changed_case(std::string text, int (*change)(int)) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [&](unsigned char c) { return static_cast<char>(change(c)); });
  return text;
}

class Planner {
 public:
  Planner(const LaunchOptions& options, const std::optional<ClusterConfig>& config,
          const ThisMachine& machine)
      : options_(options),
        config_(config),
        machine_(machine),
        file_wins_(options.texts.at("compat") == "1.0") {}

  LaunchPlan plan() {
    choose_kind();
    count_processes();
    choose_address();
    export_common();
    switch (plan_.kind) {
      case LaunchKind::kMegatron:
        export_map("megatron_lm_config", kMegatron);
        plan_.environment["ACCELERATE_USE_MEGATRON_LM"] = "true";
        export_plugin();
        break;
      case LaunchKind::kDeepSpeed:
        export_deepspeed();
        break;
      case LaunchKind::kFsdp:
        problems_.emplace_back(
            "FSDP is not available; choose Megatron-LM with the distributed optimizer");
        break;
      case LaunchKind::kSimple:
      case LaunchKind::kMultiDevice:
        break;
    }
    if (!problems_.empty()) throw ConfigError(problems_);
    return std::move(plan_);
  }

 private:
  void require(bool holds, std::string problem) {
    if (!holds) problems_.push_back(std::move(problem));
  }

  bool is_on(const char* name) const { return options_.is_on(name); }
  std::string typed(const char* name) const { return options_.texts.at(name); }

  // The value of the option, else of the file; empty if neither has it.
  std::string text(const char* name) const {
    if (options_.is_typed(name)) return typed(name);
    if (!config_ || config_->values.at(name).is_null()) return "";
    return text_of(config_->values.at(name));
  }

  std::optional<int64_t> integer(const char* name) {
    const std::string word = text(name);
    if (word.empty()) return std::nullopt;
    const std::optional<int64_t> number = integer_of(word);
    require(number.has_value(), fmt::format("--{} {} must be an integer", name, word));
    return number;
  }

  void choose_kind() {
    std::vector<std::string> kinds;
    for (const char* const name :
         {"cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"}) {
      if (is_on(name)) kinds.push_back(fmt::format("--{}", name));
    }
    const bool is_cpu_with_megatron =
        kinds == std::vector<std::string>{"--cpu", "--use_megatron_lm"};
    require(kinds.size() <= 1 || is_cpu_with_megatron,
            fmt::format("{} exclude each other; choose one", fmt::join(kinds, " and ")));
    require(!is_on("tpu"), "--tpu is not available; remove it");
    uses_cpu_ = is_on("cpu") || (config_ && config_->flag("use_cpu"));
    plan_.kind = is_on("use_megatron_lm") ? LaunchKind::kMegatron
                 : is_on("use_deepspeed") ? LaunchKind::kDeepSpeed
                 : is_on("use_fsdp")      ? LaunchKind::kFsdp
                 : is_on("multi_gpu")     ? LaunchKind::kMultiDevice
                                          : kind_of_file();
  }

  LaunchKind kind_of_file() {
    if (!config_) {
      const bool has_gpus = machine_.num_gpus > 1 && !is_on("cpu") &&
                            (typed("num_processes").empty() || typed("num_processes") != "1");
      return has_gpus ? LaunchKind::kMultiDevice : LaunchKind::kSimple;
    }
    const std::string type = config_->text("distributed_type");
    if (type == "MEGATRON_LM") return LaunchKind::kMegatron;
    if (type == "DEEPSPEED") return LaunchKind::kDeepSpeed;
    if (type == "FSDP") return LaunchKind::kFsdp;
    if (type == "MULTI_GPU") return LaunchKind::kMultiDevice;
    require(type == "NO" || type == "MULTI_CPU",
            fmt::format("distributed_type {} is not available; use MEGATRON_LM, MULTI_GPU, "
                        "DEEPSPEED, MULTI_CPU or NO",
                        type));
    return LaunchKind::kSimple;
  }

  void count_processes() {
    const std::optional<int64_t> processes = integer("num_processes");
    std::vector<std::string> defaults;
    if (processes) {
      plan_.num_processes = *processes;
    } else if (config_) {
      require(false, "the file has no num_processes; add it or type --num_processes");
    } else {
      plan_.num_processes = std::max<int64_t>(machine_.num_gpus, 1);
      defaults.push_back(fmt::format("--num_processes {}", plan_.num_processes));
    }
    plan_.num_machines = integer("num_machines").value_or(1);
    plan_.machine_rank = integer("machine_rank").value_or(0);
    plan_.max_restarts =
        options_.is_typed("max_restarts") ? integer_of(typed("max_restarts")).value_or(-1) : 0;
    require(
        plan_.max_restarts >= 0,
        fmt::format("--max_restarts {} must be an integer of at least 0", typed("max_restarts")));
    if (!config_) {
      if (!options_.is_typed("num_machines")) defaults.emplace_back("--num_machines 1");
      if (!options_.is_typed("mixed_precision")) defaults.emplace_back("--mixed_precision no");
      if (!defaults.empty()) {
        plan_.warnings.push_back(fmt::format(
            "there is no configuration file; used the defaults {}; type them, or run megatron "
            "config",
            fmt::join(defaults, " ")));
      }
    }
    require(!processes || plan_.num_processes >= 1,
            fmt::format("num_processes {} must be at least 1", plan_.num_processes));
    require(plan_.num_machines >= 1,
            fmt::format("num_machines {} must be at least 1", plan_.num_machines));
    if (!problems_.empty()) throw ConfigError(problems_);
    require(plan_.num_processes % plan_.num_machines == 0,
            fmt::format("num_processes {} must be a multiple of num_machines {}",
                        plan_.num_processes, plan_.num_machines));
    require(plan_.machine_rank >= 0 && plan_.machine_rank < plan_.num_machines,
            fmt::format("machine_rank {} must be between 0 and {}", plan_.machine_rank,
                        plan_.num_machines - 1));
    require(!is_on("multi_gpu") || plan_.num_processes > 1,
            "--multi_gpu needs at least 2 processes; type --num_processes, or remove it");
  }

  void choose_address() {
    plan_.main_process_ip = text("main_process_ip");
    plan_.main_process_port = integer("main_process_port").value_or(0);
    require(
        plan_.main_process_port >= 0 && plan_.main_process_port < 65536,
        fmt::format("main_process_port {} must be between 0 and 65535", plan_.main_process_port));
    require(plan_.num_machines == 1 || !plan_.main_process_ip.empty(),
            fmt::format("num_machines {} needs main_process_ip, the name of machine 0",
                        plan_.num_machines));
  }

  void export_common() {
    auto& environment = plan_.environment;
    const std::string precision = text("mixed_precision").empty() ? "no" : text("mixed_precision");
    require(precision == "no" || precision == "fp16" || precision == "bf16",
            fmt::format("mixed_precision {} is not available; use no, fp16 or bf16", precision));
    environment["ACCELERATE_MIXED_PRECISION"] = precision;
    if (is_on("debug") || (config_ && config_->flag("debug"))) {
      environment["ACCELERATE_DEBUG_MODE"] = "true";
    }
    const bool file_binds = config_ && !file_wins_ && config_->flag("enable_cpu_affinity");
    if (is_on("enable_cpu_affinity") || file_binds) environment["ACCELERATE_CPU_AFFINITY"] = "1";
    const std::string gpus = text("gpu_ids");
    if (!gpus.empty() && gpus != "all") environment["CUDA_VISIBLE_DEVICES"] = gpus;
    if (plan_.kind == LaunchKind::kDeepSpeed) return;
    export_map("dynamo_config", kDynamo);
    std::string& backend = environment["ACCELERATE_DYNAMO_BACKEND"];
    backend = changed_case(backend, std::toupper);
    if (plan_.kind == LaunchKind::kSimple) {
      environment["ACCELERATE_USE_CPU"] = uses_cpu_ ? "True" : "False";
    }
    environment["OMP_NUM_THREADS"] = threads();
  }

  std::string threads() const {
    if (options_.is_typed("num_cpu_threads_per_process")) {
      return typed("num_cpu_threads_per_process");
    }
    if (!machine_.omp_num_threads.empty()) return machine_.omp_num_threads;
    const bool shares_cores = plan_.kind == LaunchKind::kSimple && uses_cpu_;
    return std::to_string(
        shares_cores ? std::max<int64_t>(1, machine_.num_cores / plan_.processes_per_machine())
                     : 1);
  }

  // The value of a setting of a map, as text; nothing if neither the file nor an option has it.
  std::optional<std::string> setting(const json& map, const char* name) const {
    const auto text = options_.texts.find(name);
    const auto on = options_.switches.find(name);
    const bool is_typed = options_.is_typed(name);
    const bool is_in_file = map.contains(name) && !map[name].is_null();
    if (is_typed && !(is_in_file && file_wins_)) {
      return text != options_.texts.end() ? text->second : text_of(json(on->second));
    }
    if (is_in_file) return text_of(map[name]);
    return std::nullopt;
  }

  void export_map(const char* key, std::span<const Exported> rows) {
    const json map = config_ ? config_->map(key) : json::object();
    for (const Exported& row : rows) {
      const std::optional<std::string> value = setting(map, row.name);
      if (value || row.otherwise != nullptr) {
        plan_.environment[row.variable] = value ? *value : row.otherwise;
      }
    }
  }

  void export_plugin() {
    if (!config_) return;
    const json settings = plugin_settings(config_->map("megatron_lm_config"), plan_.warnings);
    if (!settings.empty()) plan_.environment[kPluginVariable] = settings.dump();
  }

  void export_deepspeed() {
    auto& environment = plan_.environment;
    export_map("deepspeed_config", kDeepSpeed);
    for (const Exported& row : kDeepSpeed) {
      const auto found = environment.find(row.variable);
      if (found == environment.end() || row.variable == kDeepSpeed[7].variable) continue;
      found->second = changed_case(found->second, std::tolower);
    }
    environment["ACCELERATE_USE_DEEPSPEED"] = "true";
    std::vector<std::string> fields;
    if (config_) {
      for (const auto& [name, value] : config_->map("deepspeed_config").items()) {
        fields.push_back(name);
      }
      const bool names_precision = !config_->values.at("mixed_precision").is_null();
      if (names_precision && !options_.is_typed("mixed_precision")) {
        fields.emplace_back("mixed_precision");
      }
    }
    environment["ACCELERATE_CONFIG_DS_FIELDS"] = fmt::format("{}", fmt::join(fields, ","));
  }

  const LaunchOptions& options_;
  const std::optional<ClusterConfig>& config_;
  const ThisMachine& machine_;
  bool file_wins_;
  bool uses_cpu_ = false;
  LaunchPlan plan_;
  std::vector<std::string> problems_;
};

}  // namespace

LaunchPlan launch_plan(const LaunchOptions& options, const std::optional<ClusterConfig>& config,
                       const ThisMachine& machine) {
  return Planner(options, config, machine).plan();
}

}  // namespace megatron::frontends
