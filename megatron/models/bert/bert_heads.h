#pragma once

#include <cstdint>
#include <string>

namespace megatron {

// The heads of a BERT on the output of its encoder.
struct BertHeads {
  // Name of a classification head on the pooled first token ("classification_head"), in place of
  // the heads of pre-training; empty: those.
  std::string classifier = {};
  int64_t num_classes = 0;

  bool is_classifier() const { return !classifier.empty(); }
};

}  // namespace megatron
