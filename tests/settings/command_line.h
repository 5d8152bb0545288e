#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/settings/training_args.h"

namespace megatron {

// The words of a command line, split at spaces.
inline std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

// The smallest command line without a problem.
inline constexpr const char* kMinimal =
    "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 16 "
    "--max-position-embeddings 16 --micro-batch-size 2 --train-iters 10 --lr 0.001 "
    "--tokenizer-type NullTokenizer --vocab-size 100 --mock-data ";

inline TrainingArgs parsed(const std::string& more, ModelKind model = ModelKind::kGpt) {
  return parse_training_args(words(kMinimal + more), model, 1);
}

// The problems of a command line, as the program prints them.
inline std::vector<std::string> problems_of(const std::string& line,
                                            ModelKind model = ModelKind::kGpt,
                                            int64_t world_size = 1) {
  std::vector<std::string> problems;
  try {
    parse_training_args(words(line), model, world_size);
  } catch (const ConfigError& error) {
    std::istringstream stream(error.what());
    for (std::string problem; std::getline(stream, problem);) problems.push_back(problem);
  }
  return problems;
}

}  // namespace megatron
