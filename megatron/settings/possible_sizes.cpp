#include "megatron/settings/possible_sizes.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include <fmt/format.h>

namespace megatron {

bool has_possible_sizes(const TrainingArgs& args, std::vector<std::string>& problems) {
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) problems.push_back(std::move(problem));
  };
  const TransformerConfig& c = args.transformer;
  const TrainingConfig& training = args.training;
  constexpr int64_t kLayers = 100'000;
  constexpr int64_t kWidth = int64_t{1} << 24;
  constexpr int64_t kRows = int64_t{1} << 31;
  constexpr int64_t kCount = int64_t{1} << 48;
  struct Limit {
    const char* flag;
    int64_t value;
    int64_t most;
  };
  const Limit limits[] = {
      {"--num-layers", c.num_layers, kLayers},
      {"--encoder-num-layers", c.encoder_num_layers, kLayers},
      {"--decoder-num-layers", c.decoder_num_layers, kLayers},
      {"--hidden-size", c.hidden_size, kWidth},
      {"--ffn-hidden-size", c.ffn_hidden_size, kWidth},
      {"--num-attention-heads", c.num_attention_heads, kWidth},
      {"--num-query-groups", c.num_query_groups, kWidth},
      {"--kv-channels", c.kv_channels, kWidth},
      {"--seq-length", c.seq_length, kRows},
      {"--encoder-seq-length", c.encoder_seq_length, kRows},
      {"--decoder-seq-length", c.decoder_seq_length, kRows},
      {"--max-position-embeddings", c.max_position_embeddings, kRows},
      {"--make-vocab-size-divisible-by", c.make_vocab_size_divisible_by, kRows},
      {"--pad-vocab-size-to", c.pad_vocab_size_to, kRows},
      {"padded_vocab_size", c.padded_vocab_size, kRows},
      {"--vocab-size", args.tokenizer.vocab_size, kRows},
      {"--micro-batch-size", training.micro_batch_size, kRows},
      {"--global-batch-size", training.global_batch_size, kRows},
      {"--train-iters", training.train_iters, kCount},
      {"--train-samples", training.train_samples, kCount},
  };
  for (const auto& [flag, value, most] : limits) {
    require(value <= most, fmt::format("{} {} must be at most {}", flag, value, most));
  }
  const auto product = [](std::initializer_list<int64_t> factors) {
    double result = 1;
    for (const int64_t factor : factors)
      result *= static_cast<double>(std::max<int64_t>(factor, 1));
    return result;
  };
  const int64_t rows = std::max(args.tokenizer.vocab_size, c.padded_vocab_size);
  const double parameters =
      product({c.num_layers, c.hidden_size, 3 * std::max(c.hidden_size, c.ffn_hidden_size)}) +
      product({c.hidden_size, rows});
  const double activations =
      product({c.num_layers, c.hidden_size, c.seq_length, training.micro_batch_size});
  constexpr double kMost = 1e15;
  require(parameters <= kMost,
          fmt::format("these sizes make a model of {:.1e} parameters, more than any machine holds; "
                      "check --num-layers, --hidden-size and the vocabulary",
                      parameters));
  require(activations <= kMost,
          fmt::format(
              "the inputs of the layers have {:.1e} elements a micro-batch, more than any machine "
              "holds; check --micro-batch-size, --seq-length and --hidden-size",
              activations));
  return std::all_of(std::begin(limits), std::end(limits),
                     [](const Limit& limit) { return limit.value <= limit.most; });
}

}  // namespace megatron
