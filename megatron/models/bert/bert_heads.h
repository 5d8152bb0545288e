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

// The kind of targets of a classification head.
enum class LabelKind {
  kClass,        // one of several classes: cross-entropy
  kIndependent,  // independent binary labels: binary cross-entropy
  kValue,        // regression, for a head with one output: squared error
};

}  // namespace megatron
