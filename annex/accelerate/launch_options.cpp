#include "annex/accelerate/launch_options.h"

#include <algorithm>

namespace megatron::frontends {
namespace {

struct Option {
  const char* names;
  const char* help;
};

constexpr Option kTexts[] = {
    {"--config_file",
     "A file of megatron config or accelerate config; if not given, the one in "
     "$HF_HOME/accelerate or ~/.cache/huggingface/accelerate if it exists."},
    {"--compat", "1.0: settings of the file's maps win over typed options, as in Accelerate 1.0."},
    {"--num_processes", "Ranks on all machines together."},
    {"--num_machines", "Machines; each runs the same launch with its own --machine_rank."},
    {"--machine_rank", "Number of this machine, from 0."},
    {"--main_process_ip", "Name or address of machine 0."},
    {"--main_process_port", "A port that is free on machine 0; 0: any free one, on one machine."},
    {"--gpu_ids", "GPUs of this machine: all, or numbers with commas."},
    {"--mixed_precision", "no, fp16 or bf16."},
    {"--num_cpu_threads_per_process", "OMP_NUM_THREADS of each rank."},
    {"--max_restarts", "Restart up to N times, from the last checkpoint of --save."},
    {"--megatron_lm_tp_degree", "Tensor parallel size."},
    {"--megatron_lm_pp_degree", "Pipeline parallel size."},
    {"--megatron_lm_num_micro_batches", "Micro-batches of an iteration on each rank."},
    {"--megatron_lm_sequence_parallelism", "true or false."},
    {"--megatron_lm_recompute_activations", "true or false."},
    {"--megatron_lm_use_distributed_optimizer", "true or false."},
    {"--megatron_lm_gradient_clipping", "Largest norm of the gradient; 0: off."},
    {"--deepspeed_config_file", "DeepSpeed's JSON file."},
    {"--zero_stage", "DeepSpeed's stage of ZeRO."},
    {"--gradient_accumulation_steps",
     "Micro-batches of an iteration on each rank, with DeepSpeed."},
    {"--gradient_clipping", "Largest norm of the gradient, with DeepSpeed."},
    {"--offload_optimizer_device", "none, cpu or nvme."},
    {"--offload_param_device", "none, cpu or nvme."},
    {"--offload_optimizer_nvme_path", "Folder of offloaded optimizer state."},
    {"--offload_param_nvme_path", "Folder of offloaded parameters."},
    {"--zero3_init_flag", "true or false."},
    {"--zero3_save_16bit_model", "true or false."},
    {"--dynamo_backend", "Exported; there is no graph compiler here."},
    {"--dynamo_mode", "Exported."},
};

// Known to the original, and without effect here.
constexpr const char* kUnusedTexts[] = {
    "--rdzv_backend",
    "--rdzv_conf",
    "--monitor_interval",
    "--role",
    "--tee,-t",
    "--log_dir",
    "--main_training_function",
    "--deepspeed_hostfile",
    "--deepspeed_exclusion_filter",
    "--deepspeed_inclusion_filter",
    "--deepspeed_multinode_launcher",
    "--deepspeed_moe_layer_cls_names",
    "--mpirun_hostfile",
    "--mpirun_ccl",
};

constexpr Option kSwitches[] = {
    {"--quiet,-q", "No message when a rank fails but its own."},
    {"--cpu", "Train on the CPU."},
    {"--multi_gpu", "Data parallel training, whatever the file says."},
    {"--use_megatron_lm", "The settings megatron_lm_*, whatever the file says."},
    {"--use_deepspeed", "DeepSpeed's settings, whatever the file says."},
    {"--use_fsdp", "Not available."},
    {"--tpu", "Not available."},
    {"--enable_cpu_affinity", "Exported."},
    {"--same_network", "Without effect: machines always meet at machine 0."},
    {"--debug", "Exported."},
    {"--strict", "Refuse a file with unknown keys instead of warning of them."},
    {"--module,-m", "Without effect: the script's name decides."},
    {"--no_python", "Without effect."},
    {"--downcast_bf16", "For TPUs, without effect."},
    {"--dynamo_use_fullgraph", "Exported."},
    {"--dynamo_use_dynamic", "Exported."},
    {"--ipex", "Without effect."},
};

std::string dest_of(std::string names) {
  names = names.substr(2, names.find(',') - 2);
  std::replace(names.begin(), names.end(), '-', '_');
  return names;
}

}  // namespace

bool LaunchOptions::is_typed(const std::string& name) const {
  const auto text = texts.find(name);
  if (text != texts.end()) return !text->second.empty();
  return switches.at(name);
}

FlagTable launch_option_table(LaunchOptions& options) {
  FlagTable flags;
  flags.group("launch");
  for (const auto& [names, help] : kTexts) {
    flags.add_optional(names, options.texts[dest_of(names)], help);
  }
  for (const auto& [names, help] : kSwitches) {
    flags.add_switch(names, options.switches[dest_of(names)], help);
  }
  flags.group("accepted without effect");
  for (const char* const names : kUnusedTexts) {
    flags.add_optional(names, options.texts[dest_of(names)], "For other launchers.");
  }
  return flags;
}

}  // namespace megatron::frontends
