// Trains a small GPT on mock data and saves it.
//
//   pretrain_minimal DIRECTORY
#include <megatron/megatron.h>

#include <cstdio>
#include <memory>

namespace {

// Fields have the names of the flags of `megatron pretrain-gpt`.
megatron::RunConfig tiny_gpt(const char* directory) {
  megatron::RunConfig config;
  config.transformer.num_layers = 2;
  config.transformer.hidden_size = 32;
  config.transformer.num_attention_heads = 4;
  config.transformer.seq_length = 32;
  config.transformer.max_position_embeddings = 32;
  config.optimizer.lr = 1e-2;
  config.training.micro_batch_size = 4;
  config.training.train_iters = 20;
  config.training.log_interval = 5;
  config.training.eval_iters = 0;
  config.data.mock_data = true;
  config.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = 100};
  config.checkpoint.save = directory;
  config.checkpoint.save_interval = 20;
  return config;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: pretrain_minimal DIRECTORY\n");
    return 2;
  }
  try {
    megatron::RunConfig config = megatron::resolved(tiny_gpt(argv[1]));
    const std::shared_ptr<const megatron::Tokenizer> tokenizer = megatron::open_tokenizer(config);
    megatron::GptTask task(config, tokenizer);
    megatron::TrainingRun run(config, task);
    run.train();
  } catch (const megatron::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
