#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_initialization_flags(FlagTable& flags, TrainingArgs& args) {
  TransformerConfig& c = args.transformer;

  flags.group("initialization");
  flags
      .add("--seed", args.training.seed,
           "Random seed of weights, dropout and the order of samples.")
      .in_every_version();
  flags
      .add_switch("--data-parallel-random-init", args.training.data_parallel_random_init,
                  "Let each data parallel rank draw its own weights, then take the first rank's.")
      .no_effect("initial values depend only on the seed and the place in a tensor");
  flags.add("--init-method-std", c.init_method_std, "Standard deviation of initial weights.")
      .in_every_version();
  flags.add_optional("--embedding-init-method-std", c.embedding_init_method_std,
                     "Standard deviation of the embeddings; --init-method-std if not given.");
  flags.add_switch("--init-method-xavier-uniform", c.init_method_xavier_uniform,
                   "Xavier uniform initial weights.");
}

}  // namespace megatron
