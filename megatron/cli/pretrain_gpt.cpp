#include "megatron/cli/pretrain_gpt.h"

#include <memory>
#include <string>
#include <vector>

#include "megatron/cli/pretrain.h"
#include "megatron/core/error.h"
#include "megatron/models/gpt/gpt_task.h"

namespace megatron::cli {

namespace {

int pretrain_as(const std::string& command, std::span<const std::string> words,
                const comm::Group& world) {
  return pretrain(command, ModelKind::kGpt, words, world, [](const PreparedRun& begun) {
    if (begun.args.transformer.retro.add_retriever) {
      throw ConfigError("--retro-add-retriever is for pretrain-retro; use that command");
    }
    return std::make_unique<GptTask>(begun.args, begun.tokenizer);
  });
}

}  // namespace

int pretrain_gpt(std::span<const std::string> words, const comm::Group& world) {
  return pretrain_as("pretrain-gpt", words, world);
}

int pretrain_prefix_lm(std::span<const std::string> words, const comm::Group& world) {
  std::vector<std::string> all = {"--prefix-lm"};
  all.insert(all.end(), words.begin(), words.end());
  return pretrain_as("pretrain-prefix-lm", all, world);
}

}  // namespace megatron::cli
