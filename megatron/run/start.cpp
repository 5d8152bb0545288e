#include "megatron/run/start.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "megatron/checkpoint/directory.h"
#include "megatron/comm/broadcast_object.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/run/collectively.h"
#include "megatron/settings/training_args.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron {
namespace {

// The rows of a source's vocabulary, and how many of them are not padding; 0 where it does not say.
TransformerConfig saved_vocabulary(const CheckpointSource& source) {
  TransformerConfig saved;
  if (!source.exists()) return saved;
  use_checkpoint_vocabulary(saved, source.args());
  // Without padding yet, which makes products fast.
  if (source.hf() != nullptr) saved.padded_vocab_size = 0;
  return saved;
}

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer(RunConfig& config, const CheckpointSource& source,
                                                const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  print_line(fmt::format("> building {} tokenizer ...", config.tokenizer.tokenizer_type));
  auto tokenizer = comm::broadcast_object(
      world, [&] { return std::shared_ptr<const Tokenizer>(make_tokenizer(config.tokenizer)); });
  const auto refuse_if_beyond = [&](int64_t rows) {
    if (tokenizer->vocab_size() <= rows) return;
    throw ConfigError(fmt::format(
        "the tokenizer has {} ids, the model {} rows; use the tokenizer the model was trained with",
        tokenizer->vocab_size(), rows));
  };
  TransformerConfig& model = config.transformer;
  const TransformerConfig saved = saved_vocabulary(source);
  model.true_vocab_size = saved.true_vocab_size;
  if (model.num_tokentypes == 0) model.num_tokentypes = saved.num_tokentypes;
  int64_t used = tokenizer->vocab_size();
  if (model.true_vocab_size > 0) {
    refuse_if_beyond(model.true_vocab_size);
    used = model.true_vocab_size;
  }
  int64_t& padded = model.padded_vocab_size;
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  if (model.true_vocab_size > 0 && padded % tp != 0) padded = 0;
  // The model keeps its rows, even if this number of ranks would pad to others.
  const int64_t rows = saved.padded_vocab_size;
  if (padded == 0 && rows >= used && rows % tp == 0) padded = rows;
  if (padded == 0) {
    padded = padded_vocab_size(used, model.make_vocab_size_divisible_by, tp);
  }
  refuse_if_beyond(padded);
  print_line(fmt::format(" > padded vocab (size: {}) with {} dummy tokens (new size: {})",
                         tokenizer->vocab_size(), padded - tokenizer->vocab_size(), padded));
  config.settings["padded_vocab_size"] = padded;
  if (model.true_vocab_size > 0) config.settings["true_vocab_size"] = model.true_vocab_size;
  if (!config.checkpoint.save.empty()) {
    on_first_rank(
        world, [&] { save_tokenizer(config.tokenizer, tokenizer_folder(config.checkpoint.save)); });
  }
  return tokenizer;
}

namespace {

// True for a checkpoint of a run, which can be resumed.
bool is_checkpoint(const CheckpointSource& source) {
  return source.exists() && source.hf() == nullptr;
}

// A run that starts at iteration 0 would replace checkpoints of another run, or mix with them.
void expect_no_other_run(const CheckpointConfig& config, const CheckpointSource& source) {
  const bool starts_anew = !is_checkpoint(source) || config.finetune;
  const std::vector<int64_t> there = named_iterations(config.save);
  if (!starts_anew || there.empty() || config.overwrite_checkpoints) return;
  throw ConfigError(fmt::format(
      "--save {}: checkpoints of another run are there, up to iteration {}, and this run starts at "
      "iteration 0; go on from them with --load {}, choose another directory, or give "
      "--overwrite-checkpoints",
      config.save, there.back(), config.save));
}

std::unique_ptr<const DirectoryLock> locked(const std::filesystem::path& save) {
  std::error_code error;
  std::filesystem::create_directories(save, error);
  if (!error && ::access(save.c_str(), W_OK) != 0) error = {errno, std::generic_category()};
  if (error) {
    throw IoError(fmt::format("--save {}: cannot write there: {}; choose another directory",
                              save.string(), error.message()));
  }
  return std::make_unique<const DirectoryLock>(save);
}

}  // namespace

std::shared_ptr<const SaveDirectory> prepare_save_directory(const CheckpointConfig& config,
                                                            const CheckpointSource& source,
                                                            const comm::Group& world) {
  auto result = std::make_shared<SaveDirectory>();
  if (config.save.empty()) return result;
  on_first_rank(world, [&] {
    result->lock = locked(config.save);
    expect_no_other_run(config, source);
    std::optional<std::filesystem::path> continued;
    if (is_checkpoint(source) && !config.finetune) continued = source.directory();
    result->foreign_iterations = foreign_iterations(config.save, continued);
    remove_leftovers(config.save);
  });
  return result;
}

}  // namespace megatron
