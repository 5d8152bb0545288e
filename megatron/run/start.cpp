#include "megatron/run/start.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "megatron/checkpoint/directory.h"
#include "megatron/comm/made_once.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron {
namespace {

// Rows of the embedding in a checkpoint; 0 if unknown.
int64_t saved_vocabulary(const LoadSource& source) {
  const ArgMap args = open_source(source).args;
  const auto found = args.find("padded_vocab_size");
  const int64_t* rows = found == args.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return rows == nullptr ? 0 : *rows;
}

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer(RunConfig& config, const LoadSource& source,
                                                const comm::Group& world) {
  const Speaking on_first(world.rank() == 0);
  print_line(fmt::format("> building {} tokenizer ...", config.tokenizer.tokenizer_type));
  const auto tokenizer = comm::made_once(
      world, [&] { return std::shared_ptr<const Tokenizer>(make_tokenizer(config.tokenizer)); });
  const auto refuse_if_beyond = [&](int64_t rows) {
    if (tokenizer->vocab_size() <= rows) return;
    throw ConfigError(fmt::format(
        "the tokenizer has {} ids, the model {} rows; use the tokenizer the model was trained with",
        tokenizer->vocab_size(), rows));
  };
  int64_t used = tokenizer->vocab_size();
  if (source.hf) {
    refuse_if_beyond(source.hf->vocab_size);
    used = source.hf->vocab_size;
  }
  int64_t& padded = config.transformer.padded_vocab_size;
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  if (padded == 0 && source.checkpoint) {
    // The model keeps its rows, even if this number of ranks would pad to others.
    const int64_t saved = saved_vocabulary(source);
    if (saved >= used && saved % tp == 0) padded = saved;
  }
  if (padded == 0) {
    padded = padded_vocab_size(used, config.transformer.make_vocab_size_divisible_by, tp);
  }
  refuse_if_beyond(padded);
  print_line(fmt::format(" > padded vocab (size: {}) with {} dummy tokens (new size: {})",
                         tokenizer->vocab_size(), padded - tokenizer->vocab_size(), padded));
  config.settings["padded_vocab_size"] = padded;
  if (!config.checkpoint.save.empty() && world.rank() == 0) {
    save_tokenizer(config.tokenizer, tokenizer_folder(config.checkpoint.save));
  }
  return tokenizer;
}

namespace {

// A run that starts at iteration 0 would replace checkpoints of another run, or mix with them.
void expect_no_other_run(const CheckpointConfig& config, const LoadSource& source) {
  const bool starts_anew = !source.checkpoint || config.finetune;
  const std::vector<int64_t> there = named_iterations(config.save);
  if (!starts_anew || there.empty() || config.overwrite_checkpoints) return;
  throw ConfigError(fmt::format(
      "--save {}: checkpoints of another run are there, up to iteration {}, and this run starts at "
      "iteration 0; go on from them with --load {}, choose another directory, or give "
      "--overwrite-checkpoints",
      config.save, there.back(), config.save));
}

}  // namespace

std::shared_ptr<const DirectoryLock> prepare_save_directory(CheckpointConfig& config,
                                                            const LoadSource& source) {
  const std::filesystem::path save = config.save;
  std::error_code error;
  std::filesystem::create_directories(save, error);
  if (!error && ::access(save.c_str(), W_OK) != 0) error = {errno, std::generic_category()};
  if (error) {
    throw IoError(fmt::format("--save {}: cannot write there: {}; choose another directory",
                              save.string(), error.message()));
  }
  auto lock = std::make_shared<const DirectoryLock>(save);
  expect_no_other_run(config, source);
  config.foreign_iterations =
      foreign_iterations(save, config.finetune ? std::nullopt : source.checkpoint);
  remove_leftovers(save);
  return lock;
}

}  // namespace megatron
