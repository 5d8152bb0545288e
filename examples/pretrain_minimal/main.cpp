// Trains a small GPT on mock data and saves it.
//
//   pretrain_minimal DIRECTORY
#include <megatron/megatron.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: pretrain_minimal DIRECTORY\n");
    return 2;
  }
  try {
    // Names and values of the flags of `megatron pretrain-gpt`.
    megatron::api::Trainer trainer({{"num-layers", 2},
                                    {"hidden-size", 32},
                                    {"num-attention-heads", 4},
                                    {"seq-length", 32},
                                    {"max-position-embeddings", 32},
                                    {"micro-batch-size", 4},
                                    {"train-iters", 20},
                                    {"lr", 1e-2},
                                    {"log-interval", 5},
                                    {"eval-iters", 0},
                                    {"mock-data", true},
                                    {"tokenizer-type", "NullTokenizer"},
                                    {"vocab-size", 100},
                                    {"save", argv[1]},
                                    {"save-interval", 20}});
    trainer.train();
  } catch (const megatron::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
