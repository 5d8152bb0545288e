// Trains a GPT on eight ranks that are threads of this process: two pipeline stages, each layer on
// two ranks, two copies of the model. The last rank prints the losses; they are those of one rank.
#include <megatron/megatron.h>

#include <cstdio>
#include <memory>

namespace {

using namespace megatron;

RunConfig tiny_gpt() {
  RunConfig config;
  config.transformer.num_layers = 2;
  config.transformer.hidden_size = 32;
  config.transformer.num_attention_heads = 4;
  config.transformer.seq_length = 32;
  config.transformer.max_position_embeddings = 32;
  config.optimizer.lr = 1e-2;
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = 8;
  config.training.train_iters = 10;
  config.training.log_interval = 1;
  config.training.eval_iters = 0;
  config.data.mock_data = true;
  config.data.num_workers = 0;
  config.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = 100};
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.pipeline_model_parallel_size = 2;
  config.parallel.sequence_parallel = true;
  config.parallel.use_distributed_optimizer = true;
  return config;
}

void train(const comm::Group& world) {
  RunConfig config = resolved(tiny_gpt(), world.size());
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(config, {}, world);
  GptTask task(config, tokenizer);
  TrainingRun run(config, task, world);
  run.train();
}

}  // namespace

int main() {
  try {
    comm::run_ranks(8, train);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
