#pragma once

#include <cstdint>
#include <memory>

#include "annex/retro/preprocess/embedder.h"
#include "megatron/inference/bert.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::retro {

// The mean of a BERT's final states over the tokens of a text, of which it reads the first
// `max_length` - 2 between [CLS] and [SEP]. Texts of similar length are computed together, at most
// batch_size at once. Throws ConfigError if max_length exceeds the model's positions, or the
// tokenizer has more ids than the model rows. All arguments must outlive it.
struct BertEmbedderOptions {
  int64_t batch_size = 128;
  int64_t max_length = 256;
};
std::unique_ptr<Embedder> make_bert_embedder(const BertInference& model, const Tokenizer& tokenizer,
                                             BertEmbedderOptions options);

}  // namespace megatron::retro
