#include <fmt/format.h>

#include <memory>
#include <utility>

#include "megatron/cli/finetune_run.h"
#include "megatron/comm/broadcast_object.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/text_blocks.h"
#include "megatron/models/bert/masked_blocks_task.h"
#include "megatron/models/gpt/finetune_task.h"
#include "megatron/run/collectively.h"
#include "megatron/run/train_step_library.h"

namespace megatron::cli {
namespace {

// Reads the texts in blocks. Threads of one process share them.
std::shared_ptr<const BlockSplits> read_blocks(const FinetuneFlags& flags, const TrainingArgs& args,
                                               const comm::Group& world) {
  const comm::Working working(world, "reading the texts");
  return comm::broadcast_object(world, [&] {
    const DatasetFiles files = files_of(flags);
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(args.tokenizer);
    const TextFileOptions options{.column = flags.text_column,
                                  .keeps_linebreaks = flags.keeps_linebreaks};
    const TokenizedTexts texts = tokenized_texts(files.train, options, *tokenizer);
    const int64_t block_size = args.transformer.seq_length;
    const auto blocks_of = [&](const TokenizedTexts& of, int64_t begin, int64_t end) {
      return std::make_shared<const TextBlocks>(text_blocks(of, begin, end, block_size));
    };
    auto data = std::make_shared<BlockSplits>();
    int64_t begin = 0;
    if (files.validation.empty()) {
      begin = num_validation_texts(flags, texts.num_texts());
      data->valid = blocks_of(texts, 0, begin);
    } else {
      const TokenizedTexts valid = tokenized_texts(files.validation, options, *tokenizer);
      data->valid = blocks_of(valid, 0, valid.num_texts());
    }
    data->train = blocks_of(texts, begin, texts.num_texts());
    if (data->train->num_blocks() == 0) {
      throw ConfigError(
          fmt::format("the training texts fill no block of {} tokens: there are {} texts with {} "
                      "tokens; lower --block_size or add texts",
                      block_size, texts.num_texts(), texts.ids.size()));
    }
    if (data->valid->num_blocks() == 0) {
      warn(fmt::format("the validation texts fill no block of {} tokens, so nothing is evaluated",
                       block_size));
      data->valid = nullptr;
    }
    return std::shared_ptr<const BlockSplits>(std::move(data));
  });
}

// The task of --train-step.
std::unique_ptr<FinetuneTask> library_task(const PreparedRun& begun, const BlockSplits& data) {
  std::unique_ptr<TrainTask> task = make_library_task(begun.args, begun.tokenizer, &data);
  auto* const finetuning = dynamic_cast<FinetuneTask*>(task.get());
  if (finetuning == nullptr) {
    throw ConfigError(
        fmt::format("--train-step {}: its task must derive from FinetuneTask in this command: make "
                    "such a task if TrainStepParts has finetune_data",
                    begun.args.training.train_step));
  }
  static_cast<void>(task.release());
  return std::unique_ptr<FinetuneTask>(finetuning);
}

// Trains the task and writes the perplexity of its last evaluation.
void train_on(const Finetuning& tuning, const PreparedRun& begun, const BlockSplits& data,
              const Lengths& lengths, auto& task) {
  train(tuning, begun, task,
        {.before_training = [&] { print_summary(begun.args, data.train->num_blocks(), lengths); }});
  if (task.perplexity()) write_results(tuning, {{"perplexity", *task.perplexity()}});
}

}  // namespace

void finetune_blocks(Finetuning& tuning) {
  const auto data =
      collectively([&] { return read_blocks(tuning.flags, tuning.args, tuning.world); });
  const Lengths lengths = apply_samples(tuning.flags, data->train->num_blocks(),
                                        data->valid == nullptr ? 0 : data->valid->num_blocks(),
                                        tuning.replicas, tuning.args);
  const PreparedRun begun = tuning.begin();
  if (begun.args.transformer.is_encoder_only()) {
    MaskedBlocksTask task(begun.args, begun.tokenizer, *data);
    return train_on(tuning, begun, *data, lengths, task);
  }
  const std::unique_ptr<FinetuneTask> task =
      begun.args.training.train_step.empty()
          ? std::make_unique<FinetuneTask>(begun.args, begun.tokenizer, *data)
          : library_task(begun, *data);
  train_on(tuning, begun, *data, lengths, *task);
}

}  // namespace megatron::cli
