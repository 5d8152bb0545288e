#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/data/sample_dataset.h"
#include "megatron/data/sampler.h"

namespace megatron {

struct GptSampleOptions {
  int64_t eod = 0;                    // id of the end-of-document token
  bool eod_mask_loss = false;         // no loss at inputs that are eod
  bool reset_position_ids = false;    // positions restart after each eod
  bool reset_attention_mask = false;  // tokens do not attend across an eod
  // Number of integers after the text of each sample: tokens of Retro's neighbours, and data of
  // tasks.
  int64_t neighbor_tokens = 0;
};

// One microbatch of one rank, on the host.
struct GptBatch {
  int64_t micro_batch_size = 0;
  int64_t seq_length = 0;
  std::vector<int64_t> tokens;        // [b, s]
  std::vector<int64_t> labels;        // [b, s] the next tokens
  std::vector<float> loss_mask;       // [b, s] weights of the tokens in the loss
  std::vector<int64_t> position_ids;  // [b, s]
  // [b, s] token i attends to tokens [document_starts[i], i]; empty: to all earlier ones
  // (reset_attention_mask is off).
  std::vector<int32_t> document_starts;
  // [b, s] token i also attends to tokens [i, prefix_ends[i]); empty: to none of them.
  std::vector<int32_t> prefix_ends = {};
  std::vector<int64_t> neighbor_tokens = {};  // [b, neighbor_tokens of GptSampleOptions]
  int64_t chunk_length = 0;                   // of chunks with neighbours; 0: the model's
  // Divisor of the sum of losses; 0: the sum of loss_mask. chunks_of() sets it.
  float loss_divisor = 0;
  int64_t first_sample = 0;  // index of the first row in the global order of the run
};

// Reads the samples of a group. Masks and positions depend on the inputs, never on labels.
GptBatch make_gpt_batch(const SampleDataset& dataset, const SampleGroup& group,
                        const GptSampleOptions& options);

// The first `length` tokens of every sequence. REQUIRES: length <= seq_length.
GptBatch first_tokens(const GptBatch& batch, int64_t length);

// Tokens, labels, loss mask and positions one place further on: the last place of every sequence
// has 0. Sees no document ends.
GptBatch shifted_by_one(GptBatch batch);

// A context-parallel rank's part of a batch: some of the `num_chunks` equal chunks of every
// sequence, concatenated. Positions are those of the whole sequence. Document starts are [chunks,
// b, s / num_chunks], unlike in a whole batch. The loss divisor is chosen so that the mean over
// ranks that together have all chunks is the mean over the whole batch. REQUIRES: seq_length is a
// multiple of num_chunks, and the batch has no prefixes.
GptBatch chunks_of(const GptBatch& batch, std::span<const int64_t> chunks, int64_t num_chunks);

}  // namespace megatron
