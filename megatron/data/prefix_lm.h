#pragma once

#include <cstdint>

#include "megatron/data/gpt_batch.h"
#include "megatron/data/split.h"

namespace megatron {

struct PrefixOptions {
  int64_t eod = 0;                    // id of the end-of-document token
  bool per_document = false;          // each document has a prefix, not the sequence
  bool loss_on_targets_only = false;  // see add_prefixes()
  bool reweight_loss = false;         // see add_prefixes()
  uint64_t seed = 0;                  // of the run
};

// Turns a batch into one for a prefix language model (Wang et al. 2022, arXiv:2204.05832, sec.
// 2.1): sets prefix_ends, weights and divisor of the loss.
//
// The length of a prefix is uniform in [1, n]; n is the length of the sequence, or of the document
// without its eod. It depends only on the seed, the split, the position of the sample in the order
// of the run and the number of the document.
//
//   loss_on_targets_only  tokens before the last one of a prefix have weight 0
//   reweight_loss         the weight of position i is multiplied by 2 (s - i) / (s + 1)
//
// Compat: as in Megatron-DeepSpeed the sum of the weighted losses is divided by the expected number
// of counted tokens, not by the weights of this batch: by b s, with loss_on_targets_only b (s + 1)
// / 2, or b times the mean of the sums of the last weights if reweight_loss is on, too.
void add_prefixes(GptBatch& batch, Split split, const PrefixOptions& options);

}  // namespace megatron
