#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_moe_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  ArgMap& other = args.other;
  const ArgValue none;
  const char* feature = "mixture of experts";

  flags.group("mixture of experts");
  flags.add_entry("--num-experts", T::kInt, other, none, "Experts of each MLP.", feature);
  flags
      .add_entry("--moe-router-load-balancing-type", T::kChoice, other, "aux_loss",
                 "Balancing of tokens over the experts.")
      .among({"aux_loss", "sinkhorn", "none"});
  flags.add_entry("--moe-router-topk", T::kInt, other, int64_t{2}, "Experts per token.");
  flags.add_entry("--moe-grouped-gemm", T::kSwitch, other, false, "Kernel choice of experts.");
  flags.add_entry("--moe-aux-loss-coeff", T::kFloat, other, 0.0, "Weight of the balancing loss.");
  flags.add_entry("--moe-z-loss-coeff", T::kFloat, other, none, "Weight of the router's z-loss.");
  flags.add_entry("--moe-input-jitter-eps", T::kFloat, other, none, "Noise on router inputs.");
  flags.add_entry("--moe-token-dropping", T::kSwitch, other, false, "Drop tokens of full experts.");
  flags.add_later_entry("--moe-ffn-hidden-size", T::kInt, other, none, "Hidden size of an expert.");
  flags.add_later_entry("--moe-layer-freq", T::kText, other, "1",
                        "Frequency of layers with experts.");
  flags.add_later_entry("--moe-token-dispatcher-type", T::kText, other, "allgather",
                        "Dispatch of tokens to experts.");
  flags.add_later_entry("--moe-expert-capacity-factor", T::kFloat, other, none,
                        "Capacity of an expert.");
  flags.add_later_entry("--moe-shared-expert-intermediate-size", T::kInt, other, none,
                        "Hidden size of the shared expert.", feature);
  flags.add_later_entry("--moe-router-score-function", T::kText, other, "softmax",
                        "Function of router scores.");
  flags.add_later_entry("--moe-permute-fusion", T::kSwitch, other, false,
                        "Kernel choice of experts.");
}

}  // namespace megatron
