#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/inference/generate.h"
#include "megatron/inference/text_rows.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/parallel/parallel_context.h"

// What a trained T5 says of texts. Every rank of the model calls each function with the same
// arguments and gets the same result. Throws ConfigError for ids that are not in the vocabulary,
// and for texts that are longer than the model's positions or not all as long as each other.
namespace megatron {

// A model and the ranks that share it by tensor parallelism alone.
struct T5Inference {
  const T5Model& model;
  ParallelContext parallel = {};  // the default: one rank has all of it
};

// Texts of one length as the encoder reads them.
struct T5Texts {
  IdRows ids;                  // [b, se]
  IdRows attention_mask = {};  // [b, se] 1: seen, 0: padding; empty: all are seen
};

// The loss as transformers defines it: the mean negative log-likelihood of the labels [b, sd] that
// count. The decoder reads them one place later, behind `start`, which also stands for those that
// do not count.
double t5_loss(const T5Inference& model, const T5Texts& texts, const IdRows& labels, int32_t start);

// A text, and what its decoder writes: `decoding` begins with the tokens of its prompt, which is
// the model's start token at least.
struct T5Request {
  std::vector<int32_t> text = {};
  Request decoding = {};
};

// Continues every decoder, many at once: requests join and leave between two steps. The encoder
// reads a text once, and the keys and values of its output are computed once. What a request draws
// depends on its seed, its row and its tokens alone. Tokens of the results are those of the
// decoder, prompt included. REQUIRES: requests have no beams.
std::vector<Generation> generate(const T5Inference& model, std::span<const T5Request> requests,
                                 const TokenSink& on_token = {});

// The best texts of a decoder by a beam search, at most as many as request.decoding.beams says.
std::vector<Hypothesis> search_beams(const T5Inference& model, const T5Request& request);

}  // namespace megatron
