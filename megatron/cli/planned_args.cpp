#include "megatron/cli/planned_args.h"

#include <fmt/format.h>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron::cli {

void fill_for_plan(TrainingArgs& args) {
  TransformerConfig& model = args.transformer;
  TrainingConfig& training = args.training;
  if (!args.given.contains("lr")) {
    args.optimizer.lr = 1e-4;
    args.given.insert("lr");
  }
  if (training.train_iters == 0 && training.train_samples == 0) training.train_iters = 1000;
  if (!args.given.contains("micro_batch_size")) training.micro_batch_size = 1;
  if (!args.given.contains("max_position_embeddings")) {
    model.max_position_embeddings = model.seq_length;
  }
  const TokenizerConfig& tokenizer = args.tokenizer;
  const bool has_files = !tokenizer.vocab_file.empty() || !tokenizer.merge_file.empty() ||
                         !tokenizer.tokenizer_model.empty();
  if (has_files || !tokenizer.tokenizer_type.empty()) return;
  args.tokenizer.tokenizer_type = "NullTokenizer";
  if (tokenizer.vocab_size > 0) return;
  constexpr int64_t kGpt2Ids = 50257;
  args.tokenizer.vocab_size = kGpt2Ids - 1;  // the null tokenizer adds the end of document
  args.warnings.push_back(fmt::format(
      "no tokenizer: planned with the {} ids of GPT-2; give --vocab-size for another number",
      kGpt2Ids));
}

void find_vocabulary(TrainingArgs& args) {
  int64_t& padded = args.transformer.padded_vocab_size;
  if (padded > 0) return;
  padded = padded_vocab_size(make_tokenizer(args.tokenizer)->vocab_size(),
                             args.transformer.make_vocab_size_divisible_by,
                             args.parallel.tensor_model_parallel_size);
}

}  // namespace megatron::cli
