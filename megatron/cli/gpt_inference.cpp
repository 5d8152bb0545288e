#include "megatron/cli/gpt_inference.h"

#include <fmt/format.h>

#include "megatron/cli/agreement.h"
#include "megatron/cli/checkpoint_formats.h"
#include "megatron/cli/gpt_checkpoint.h"
#include "megatron/comm/share_threads.h"
#include "megatron/core/error.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/run/device_choice.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {
namespace {

bool names_tokenizer(const TokenizerConfig& config) {
  return !config.vocab_file.empty() || !config.tokenizer_model.empty() || config.vocab_size > 0;
}

TransformerConfig for_inference(TransformerConfig config) {
  config.hidden_dropout = 0;
  config.attention_dropout = 0;
  return config;
}

// The layout of this command: nothing of it comes from the checkpoint.
ParallelConfig laid_out(ParallelConfig config, const TransformerConfig& transformer,
                        int64_t num_ranks) {
  const int64_t tp = config.tensor_model_parallel_size;
  const int64_t pp = config.pipeline_model_parallel_size;
  config.world_size = num_ranks;
  if (config.context_parallel_size != 1) {
    throw ConfigError(
        fmt::format("--context-parallel-size {} is for training: generate and score do not divide "
                    "sequences; remove it, and divide the model by --tensor-model-parallel-size or "
                    "--pipeline-model-parallel-size",
                    config.context_parallel_size));
  }
  if (tp >= 1 && pp >= 1 && tp * pp != num_ranks) {
    throw ConfigError(
        fmt::format("tensor {} x pipeline {} are {} ranks, and there are {}; use megatron launch "
                    "--nproc-per-node {} with this command, or other sizes",
                    tp, pp, tp * pp, num_ranks, tp * pp));
  }
  std::vector<std::string> wrong = problems(config);
  if (wrong.empty()) {
    for (std::string& problem : problems(transformer, tp)) wrong.push_back(std::move(problem));
    for (std::string& problem : pipeline_problems(config, transformer.num_layers)) {
      wrong.push_back(std::move(problem));
    }
  }
  if (!wrong.empty()) throw ConfigError(wrong);
  return config;
}

}  // namespace

void add_model_flags(FlagTable& table, ModelFlags& flags) {
  table.group("model");
  table.add_optional("--load", flags.load,
                     "Checkpoint directory of this program, or a Hugging Face model.");
  table.add_optional("--ckpt-step", flags.ckpt_step, "Iteration to load instead of the latest.");
  table.add_optional("--num-threads", flags.num_threads, "Threads of CPU kernels.");
  table.add_choice(
      "--device", flags.device,
      {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
      "Where to compute; auto is a GPU where there is one.");
  table.group("parallel");
  table.add(
      "--tensor-model-parallel-size", flags.parallel.tensor_model_parallel_size,
      "Ranks that share each layer, under megatron launch; those that trained do not matter.");
  table.add("--pipeline-model-parallel-size", flags.parallel.pipeline_model_parallel_size,
            "Stages that the layers are divided into, likewise.");
  table.add_optional("--decoder-first-pipeline-num-layers",
                     flags.parallel.decoder_first_pipeline_num_layers,
                     "Layers of the first stage.");
  table.add_optional("--decoder-last-pipeline-num-layers",
                     flags.parallel.decoder_last_pipeline_num_layers, "Layers of the last stage.");
  table.add("--context-parallel-size", flags.parallel.context_parallel_size,
            "Of training; here 1 only: sequences are not divided.");
  table.add_entry("--sequence-parallel", FlagType::kSwitch, flags.without_effect, false,
                  "Of training; sequences of any length are generated.");
  table.add_entry("--use-checkpoint-args", FlagType::kSwitch, flags.without_effect, false,
                  "The model is always built as the checkpoint says.");
  table.group("tokenizer");
  table.add_optional("--tokenizer-type", flags.tokenizer.tokenizer_type,
                     "What turns text into ids; that of the checkpoint if not given.");
  table.add_optional("--vocab-file", flags.tokenizer.vocab_file, "GPT-2: vocab.json.");
  table.add_optional("--merge-file,--merges-file", flags.tokenizer.merge_file,
                     "GPT-2: merges.txt.");
  table.add_optional("--tokenizer-model", flags.tokenizer.tokenizer_model,
                     "GPT-2: a directory with vocab.json and merges.txt.");
  table.add_optional("--vocab-size", flags.tokenizer.vocab_size, "NullTokenizer: number of ids.");
}

const Tokenizer& GptForInference::required_tokenizer() const {
  if (tokenizer != nullptr) return *tokenizer;
  throw ConfigError(
      "text needs a tokenizer, and the model's directory has none (vocab.json and merges.txt); "
      "give "
      "--tokenizer-type, --vocab-file and --merge-file, or ids instead of text");
}

GptForInference load_for_inference(const ModelFlags& flags, const comm::Group& world) {
  if (flags.load.empty()) {
    throw ConfigError("--load is required: the directory of a checkpoint or Hugging Face model");
  }
  comm::use_threads(flags.num_threads);
  const LoadSource source = find_load_source(flags.load, flags.ckpt_step, true);

  GptForInference result;
  TransformerConfig config;
  TokenizerConfig tokenizer;
  if (source.hf) {
    config = source.hf->transformer;
    result.vocab_size = source.hf->vocab_size;
    const std::filesystem::path& directory = source.hf_directory;
    if (std::filesystem::exists(directory / "vocab.json") &&
        std::filesystem::exists(directory / "merges.txt")) {
      tokenizer = {.tokenizer_type = "GPT2BPETokenizer", .tokenizer_model = directory.string()};
    }
  } else {
    const TrainingArgs run = described_run(source.format, open_source(source).args);
    config = run.transformer;
    tokenizer = run.tokenizer;
  }
  if (names_tokenizer(flags.tokenizer)) {
    tokenizer = flags.tokenizer;
    if (tokenizer.tokenizer_type.empty()) tokenizer.tokenizer_type = "GPT2BPETokenizer";
  }
  if (world.rank() == 0 && names_tokenizer(tokenizer)) {
    result.tokenizer = make_tokenizer(tokenizer);
  }
  if (result.vocab_size == 0) {
    result.vocab_size = result.tokenizer != nullptr
                            ? std::min(result.tokenizer->vocab_size(), config.padded_vocab_size)
                            : config.padded_vocab_size;
  }
  const ParallelConfig parallel =
      in_common([&] { return laid_out(flags.parallel, config, world.size()); });
  result.vocab_rows = config.padded_vocab_size;
  const int64_t tp = parallel.tensor_model_parallel_size;
  config.padded_vocab_size = (config.padded_vocab_size + tp - 1) / tp * tp;
  result.stream = std::make_unique<OwnedStream>(chosen_device(flags.device, world));
  result.parallel = make_parallel_context(world, parallel);
  const int stage = result.parallel.pipeline.rank();
  result.model = std::make_unique<GptModel>(
      for_inference(config), model_chunks(parallel, config.num_layers, stage).front(),
      result.parallel.tensor, result.stream->get());
  load_weights(*result.model, source);
  return result;
}

}  // namespace megatron::cli
