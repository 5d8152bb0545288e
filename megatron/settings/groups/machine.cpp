#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_machine_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  TrainingConfig& c = args.training;
  using D = DeviceChoice;

  flags.group("machine");
  flags.add_choice("--device", c.device, {{"auto", D::kAuto}, {"cpu", D::kCpu}, {"cuda", D::kCuda}},
                   "Device of training; auto: a GPU if there is one.");
  flags
      .add_optional("--num-threads", c.num_threads,
                    "Threads of CPU kernels; all cores of this process if not given.")
      .not_zero()
      .at_most(kMaxThreads);
  flags.add_switch("--cuda-graph", c.cuda_graph,
                   "On a GPU, capture a microbatch into a CUDA graph and replay it if that is "
                   "safe. This is the default.");
  flags.add_off("--no-cuda-graph", c.cuda_graph,
                "Launch the kernels of every microbatch individually.");
  flags.add_switch("--skip-memory-check", c.skip_memory_check,
                   "Train even if the memory plan exceeds the device's memory.");
  flags.add_switch("--deterministic-mode", c.deterministic_mode,
                   "Make repeated runs bit-identical, even if that is slower.");
  flags.add_switch("--allow-tf32", c.allow_tf32,
                   "Let fp32 products on a GPU round their operands to TF32 (10 mantissa bits), "
                   "which is faster.");
  flags
      .add_optional("--megatron-compat", c.megatron_compat,
                    "Route tokens to experts by the rules of this Megatron Core version: 0.5 "
                    "(router without bias, jitter of logits, losses of a rank's own tokens).")
      .architecture();
  flags
      .add_entry("--transformer-impl", T::kChoice, args.other, "local",
                 "Layer implementation; this program has one.")
      .among({"local", "transformer_engine", "inference_optimized"});
  flags.add_entry("--spec", T::kTexts, args.other, ArgValue(), "Another layer implementation.",
                  "a layer of one's own from the command line");
}

}  // namespace megatron
