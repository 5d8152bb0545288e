#include "annex/accelerate/questionnaire.h"

#include <fmt/format.h>

#include <cctype>
#include <utility>

#include "annex/accelerate/deepspeed_questions.h"
#include "annex/accelerate/fsdp_questions.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using Version = AccelerateVersion;
using Rows = std::vector<std::string>;

// Row of a menu of machines, and the distributed type that it stands for.
using Machine = std::pair<const char*, const char*>;

std::vector<Machine> machines_of(Version version) {
  const Machine none = {"one process", "NO"};
  const Machine cpu = {"multi-CPU", "MULTI_CPU"};
  const Machine xpu = {"multi-XPU", "MULTI_XPU"};
  const Machine gpu = {"multi-GPU", "MULTI_GPU"};
  const Machine npu = {"multi-NPU", "MULTI_NPU"};
  const Machine mlu = {"multi-MLU", "MULTI_MLU"};
  const Machine musa = {"multi-MUSA", "MULTI_MUSA"};
  switch (version) {
    case Version::k0_14:
      return {none, cpu, gpu, {"TPU", "TPU"}, {"MPS", "MPS"}};
    case Version::k0_27:
      return {none, cpu, xpu, gpu, npu, {"TPU", "XLA"}};
    case Version::k1_0:
      return {none, cpu, xpu, gpu, npu, mlu, musa, {"TPU", "XLA"}};
    case Version::k1_15:
      return {none,          cpu,
              xpu,           {"multi-HPU", "MULTI_HPU"},
              gpu,           npu,
              mlu,           {"multi-SDAA", "MULTI_SDAA"},
              musa,          {"multi-NEURON", "MULTI_NEURON"},
              {"TPU", "XLA"}};
  }
  throw InternalError("machines_of: unknown version");
}

Rows dynamo_backends(Version version) {
  Rows rows = {"eager",      "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser",
               "cudagraphs", "ofi",       "fx2trt",   "onnxrt",         "tensorrt"};
  if (version >= Version::k1_0) {
    rows.insert(rows.end(), {"aot_torchxla_trace_once", "torhchxla_trace_once"});  // as there
  }
  if (version <= Version::k1_0) rows.emplace_back("ipex");
  rows.emplace_back("tvm");
  return rows;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// The questions, and the answers so far.
class Questionnaire {
 public:
  Questionnaire(Prompt& prompt, Version version) : prompt_(prompt), version_(version) {}

  ClusterConfig ask() {
    set("downcast_bf16", "no");
    set("same_network", true);
    if (is_since(Version::k0_27)) set("tpu_env", json::array());
    ask_environment();
    ask_machine();
    if (type() != "NO") ask_machines();
    if (type() == "NO") {
      set("use_cpu", prompt_.yes("Train on the CPU even if there is a GPU?", false));
    } else {
      set("use_cpu", type() == "MULTI_CPU");
    }
    ask_cpu();
    if (is_since(Version::k0_27)) ask_dynamo();
    ask_engine();
    ask_processes();
    ask_gpus();
    ask_mixed_precision();
    return std::move(config_);
  }

 private:
  bool is_since(Version version) const { return version_ >= version; }
  std::string type() const { return config_.text("distributed_type"); }
  void set(const char* key, json value) { config_.values[key] = std::move(value); }

  void ask_environment() {
    while (prompt_.choose("Where do the ranks run?", {"This machine", "Amazon SageMaker"}) != 0) {
      prompt_.say("SageMaker is not available here; choose This machine.");
    }
  }

  void ask_machine() {
    const std::vector<Machine> machines = machines_of(version_);
    Rows rows;
    for (const Machine& machine : machines) rows.emplace_back(machine.first);
    for (;;) {
      const Machine& chosen = machines[prompt_.choose("What kind of machine is it?", rows)];
      set("distributed_type", chosen.second);
      if (type() == "NO" || type() == "MULTI_CPU" || type() == "MULTI_GPU") return;
      prompt_.say(fmt::format("{} is not available here; choose no distribution, CPUs or GPUs.",
                              chosen.first));
    }
  }

  void ask_machines() {
    int64_t machines = 0;
    while (machines < 1) {
      machines = prompt_.integer("How many machines?", 1);
    }
    set("num_machines", machines);
    if (machines > 1) {
      Rows ranks;
      for (int64_t rank = 0; rank < machines; ++rank) ranks.push_back(std::to_string(rank));
      set("machine_rank", prompt_.choose("What is the number of this machine?", ranks));
      set("main_process_ip", prompt_.text("What is the address of machine 0?"));
      set("main_process_port", prompt_.integer("Which port is free on machine 0?"));
      set("same_network", prompt_.yes("Are all machines in one local network?", true));
      if (!config_.flag("same_network")) {
        set("rdzv_backend", prompt_.text("How do the machines meet (static or c10d)?", "static"));
      }
    }
    if (is_since(Version::k0_27)) {
      set("debug", prompt_.yes("Check the shapes of collectives while training (slower)?", false));
    }
  }

  void ask_cpu() {
    if (!config_.flag("use_cpu")) return;
    if (version_ == Version::k0_27 || version_ == Version::k1_0) {
      set("ipex_config", {{"ipex", prompt_.yes("Use the IPEX library on the CPU?", false)}});
    }
    const bool asks_for_mpirun = is_since(Version::k1_0) && type() == "MULTI_CPU";
    if (asks_for_mpirun && prompt_.yes("Start the ranks by mpirun?", false)) {
      const std::string hostfile = prompt_.text("Which hostfile does mpirun read?", "~/hostfile");
      const std::string threads = prompt_.text("How many worker threads has oneCCL?", "1");
      set("mpirun_config", {{"mpirun_hostfile", hostfile}, {"mpirun_ccl", threads}});
    }
  }

  void ask_dynamo() {
    if (!prompt_.yes("Use the graph compiler dynamo?", false)) return;
    const Rows backends = dynamo_backends(version_);
    const size_t inductor = 2;
    const size_t backend = prompt_.choose("Which backend of dynamo?", backends, inductor);
    json& dynamo = config_.values["dynamo_config"];
    dynamo["dynamo_backend"] = upper(backends[backend]);
    if (!prompt_.yes("Change the defaults of the compiler?", false)) return;
    const Rows modes = {"default", "reduce-overhead", "max-autotune"};
    dynamo["dynamo_mode"] = modes[prompt_.choose("Which mode?", modes)];
    dynamo["dynamo_use_fullgraph"] = prompt_.yes("Require one graph for the whole model?", false);
    dynamo["dynamo_use_dynamic"] = prompt_.yes("Compile for changing shapes?", false);
  }

  // Asks for the engine that distributes the work over GPUs.
  void ask_engine() {
    if (type() == "MULTI_CPU") return;
    if (prompt_.yes("Use DeepSpeed?", false)) {
      set("distributed_type", "DEEPSPEED");
      set("deepspeed_config",
          ask_for_deepspeed(prompt_, version_, config_.integer("num_machines") > 1));
      return;
    }
    if (type() != "MULTI_GPU") return;
    if (prompt_.yes("Use fully sharded data parallelism (FSDP)?", false)) {
      set("distributed_type", "FSDP");
      set("fsdp_config", ask_for_fsdp(prompt_, version_));
      return;
    }
    if (prompt_.yes("Use Megatron-LM?", false)) {
      set("distributed_type", "MEGATRON_LM");
      set("megatron_lm_config", megatron_answers());
    }
  }

  int64_t ask_degree(const char* question) {
    for (;;) {
      const int64_t degree = prompt_.integer(question, 1);
      if (degree >= 1) return degree;
      prompt_.say("Enter at least 1.");
    }
  }

  json megatron_answers() {
    json answers = json::object();
    answers["megatron_lm_tp_degree"] = ask_degree("What is the tensor parallel size?");
    if (answers["megatron_lm_tp_degree"] > 1) {
      answers["megatron_lm_sequence_parallelism"] = prompt_.yes("Use sequence parallelism?", true);
    }
    answers["megatron_lm_pp_degree"] = ask_degree("What is the pipeline parallel size?");
    if (answers["megatron_lm_pp_degree"] > 1) {
      answers["megatron_lm_num_micro_batches"] =
          ask_degree("How many micro-batches has an iteration?");
    }
    answers["megatron_lm_recompute_activations"] =
        prompt_.yes("Recompute activations selectively?", true);
    answers["megatron_lm_use_distributed_optimizer"] =
        prompt_.yes("Use the distributed optimizer?", true);
    answers["megatron_lm_gradient_clipping"] =
        prompt_.number("To which norm are gradients clipped (0: not at all)?", 1.0);
    return answers;
  }

  void ask_processes() {
    if (type() == "NO") {
      set("num_processes", 1);
      return;
    }
    const char* const what = type() != "MULTI_CPU"     ? "GPUs"
                             : is_since(Version::k1_0) ? "processes"
                                                       : "CPUs";
    for (;;) {
      set("num_processes", prompt_.integer(fmt::format("How many {} in total?", what), 1));
      const std::vector<std::string> wrong = problems(config_);
      if (wrong.empty()) return;
      if (type() == "MULTI_GPU" && config_.integer("num_processes") == 1) throw ConfigError(wrong);
      for (const std::string& problem : wrong) prompt_.say(problem);
    }
  }

  void ask_gpus() {
    if (!is_since(Version::k0_27) || config_.flag("use_cpu")) return;
    if (type() != "MULTI_GPU" && type() != "NO") return;
    set("gpu_ids", prompt_.text("Which GPUs of this machine (numbers with commas)?", "all"));
    if (is_since(Version::k1_0)) {
      set("enable_cpu_affinity",
          prompt_.yes("Bind processes to the cores next to their GPU?", false));
    }
  }

  void ask_mixed_precision() {
    if (type() == "DEEPSPEED" && names_precision(config_.map("deepspeed_config"))) return;
    Rows rows = {"no", "fp16", "bf16"};
    if (is_since(Version::k0_27)) rows.emplace_back("fp8");
    const char* const question = "Which mixed precision?";
    for (;;) {
      set("mixed_precision", rows[prompt_.choose(question, rows)]);
      if (config_.text("mixed_precision") != "fp8") return;
      prompt_.say("fp8 is not available here; choose no, fp16 or bf16.");
    }
  }

  Prompt& prompt_;
  Version version_;
  ClusterConfig config_ = default_cluster_config();
};

}  // namespace

ClusterConfig ask_for_cluster_config(Prompt& prompt, AccelerateVersion version) {
  return Questionnaire(prompt, version).ask();
}

}  // namespace megatron::frontends
