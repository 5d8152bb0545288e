// Trains a GPT on eight ranks that are threads of this process: two pipeline stages, each layer on
// two ranks, two copies of the model. The last rank prints the losses; they are those of one rank.
#include <megatron/megatron.h>

#include <cstdio>

int main() {
  using namespace megatron;
  const api::Settings settings = {{"num-layers", 2},
                                  {"hidden-size", 32},
                                  {"num-attention-heads", 4},
                                  {"seq-length", 32},
                                  {"max-position-embeddings", 32},
                                  {"micro-batch-size", 1},
                                  {"global-batch-size", 8},
                                  {"train-iters", 10},
                                  {"lr", 1e-2},
                                  {"log-interval", 1},
                                  {"eval-iters", 0},
                                  {"mock-data", true},
                                  {"num-workers", 0},
                                  {"tokenizer-type", "NullTokenizer"},
                                  {"vocab-size", 100},
                                  {"tensor-model-parallel-size", 2},
                                  {"pipeline-model-parallel-size", 2},
                                  {"sequence-parallel", true},
                                  {"use-distributed-optimizer", true}};
  try {
    api::run_ranks(8, [&](const api::World& world) { api::Trainer(settings, world).train(); });
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
