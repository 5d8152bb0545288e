#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "megatron/inference/page_pool.h"
#include "megatron/inference/t5.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron {

// Texts as the encoder of a T5 takes them. Throws ConfigError as generate() does.
T5Input encoder_input(const T5Model& model, const T5Texts& texts);

// Throws ConfigError for a request that the model cannot answer.
void check_request(const T5Model& model, const T5Request& request);

// A text that the decoder of a T5 writes.
struct T5Row {
  size_t index = 0;  // of its request
  std::vector<int32_t> tokens = {};
  std::vector<int32_t> pages = {};
  int64_t cached = 0;                          // tokens whose keys and values are in the pages
  std::shared_ptr<EncoderMemory> memory = {};  // the beams of a request share it

  // Whether the next token is known, as those of a prompt are.
  bool knows_next() const { return cached + 1 < static_cast<int64_t>(tokens.size()); }
};

// Runs the decoder of a T5 on many texts at once, a token of each a step. All ranks of the model
// make the same calls.
class T5Decoder {
 public:
  // For up to `num_rows` rows at a time, of up to `longest` tokens.
  T5Decoder(const T5Inference& inference, int64_t num_rows, int64_t longest);

  // A row that begins with the prompt, whose encoder has read the text.
  T5Row begin(const T5Request& request);
  // The same row with pages of its own.
  T5Row copy_of(const T5Row& row);
  void release(const T5Row& row);

  // Reads the first token of each row that is not cached. The logits behind it, in fp32 on the host
  // of rank 0: [rows, v].
  Tensor next_logits(std::span<T5Row* const> rows);

 private:
  const T5Model& model_;
  const ParallelContext& parallel_;
  PagePool pool_;
  KvCache cache_;
  Tensor distance_bias_;
};

// The tokens of the longest text that a request can lead to.
int64_t longest_of(const Request& request);

}  // namespace megatron
