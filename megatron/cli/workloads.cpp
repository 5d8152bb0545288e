#include "megatron/cli/workloads.h"

#include <fmt/format.h>

#include <sstream>

#include "megatron/core/error.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

struct Workload {
  const char* name;
  const char* flags;
  ModelKind kind = {};
};
// Shapes of GPT-2 and GPT-3 with GPT-2's vocabulary, and of Llama 3, BERT and T5 with their own.
// --vocab-size is without the end of document, which the null tokenizer adds.
constexpr Workload kWorkloads[] = {
    {"tiny",
     "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 "
     "--micro-batch-size 2 --vocab-size 50303"},
    {"124m",
     "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 256 "
     "--micro-batch-size 4 --vocab-size 50303"},
    {"345m",
     "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
     "--micro-batch-size 4 --vocab-size 50303"},
    {"774m",
     "--num-layers 36 --hidden-size 1280 --num-attention-heads 20 --seq-length 1024 "
     "--micro-batch-size 4 --vocab-size 50303"},
    {"1.3b",
     "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
     "--micro-batch-size 2 --vocab-size 50303"},
    {"1.5b",
     "--num-layers 48 --hidden-size 1600 --num-attention-heads 25 --seq-length 1024 "
     "--micro-batch-size 2 --vocab-size 50303"},
    {"6.7b",
     "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
     "--micro-batch-size 1 --vocab-size 50303"},
    {"llama3-8b",
     "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
     "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
     "--norm-epsilon 1e-5 --disable-bias-linear --untie-embeddings-and-output-weights "
     "--position-embedding-type rope --rotary-base 500000 --no-position-embedding "
     "--seq-length 8192 --micro-batch-size 1 --vocab-size 128255"},
    {"bert-large",
     "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
     "--micro-batch-size 32 --vocab-size 30521",
     ModelKind::kBert},
    {"t5-large",
     "--num-layers 24 --decoder-num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
     "--seq-length 512 --decoder-seq-length 128 --micro-batch-size 32 --vocab-size 30621",
     ModelKind::kT5},
};

const Workload& workload_named(const std::string& name) {
  for (const Workload& workload : kWorkloads) {
    if (workload.name == name) return workload;
  }
  throw ConfigError(fmt::format("--workload {} is unknown; use {}", name, workload_names()));
}

}  // namespace

ModelKind workload_kind(const std::string& name) { return workload_named(name).kind; }

std::vector<std::string> workload_command(const std::string& name,
                                          std::span<const std::string> more) {
  std::vector<std::string> words = {"--mock-data",
                                    "--tokenizer-type",
                                    "NullTokenizer",
                                    "--train-iters",
                                    "1000",
                                    "--lr",
                                    "1e-4",
                                    "--attention-dropout",
                                    "0",
                                    "--hidden-dropout",
                                    "0"};
  std::istringstream flags{std::string(workload_named(name).flags)};
  for (std::string word; flags >> word;) words.push_back(word);
  words.insert(words.end(), more.begin(), more.end());

  std::string length;
  FlagTable table;
  table.add("--seq-length", length, "");
  std::vector<std::string> all = words;
  table.parse(table.take_own(all));
  words.insert(words.begin(), {"--max-position-embeddings", length});
  return words;
}

std::string workload_names() {
  std::string names;
  for (size_t i = 0; i < std::size(kWorkloads); ++i) {
    const bool is_last = i + 1 == std::size(kWorkloads);
    names += std::string(i == 0 ? "" : is_last ? " or " : ", ") + kWorkloads[i].name;
  }
  return names;
}

}  // namespace megatron::cli
