#include "megatron/cli/convert_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/directory_lock.h"
#include "megatron/cli/command.h"
#include "megatron/cli/zero_to_fp32.h"
#include "megatron/core/error.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/log.h"
#include "megatron/formats/json_file.h"
#include "megatron/interchange/check_conversion.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/checkpoint_text.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/hf/folder.h"
#include "megatron/interchange/megatron/rank_shard.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

struct ConversionOptions {
  std::string load;
  std::string save;
  int64_t ckpt_step = 0;
  std::string model_type;
  std::string loader;  // ignored: formats are recognised
  std::string saver = "megatron";
  int64_t tensor = 0;
  int64_t pipeline = 0;
  int64_t virtual_pipeline = 1;
  int64_t data = 1;
  int64_t true_vocab_size = 0;
  std::string vocab_file;
  int64_t divisible_by = 0;
  std::string params_dtype;
  std::string max_shard_size = "10GB";
  std::string megatron_path;
  std::string tokenizer_name;
  int64_t default_end_token = 0;
  std::string tokenizer_model;
  std::string position_embedding_type;
  std::string loader_transformer_impl;
  std::string saver_transformer_impl;
  std::string model_size;
  std::string checkpoint_type = "hf";
  int64_t max_queue_size = 50;
  int64_t num_extract_workers = 0;
  int64_t num_merge_workers = 0;
  int64_t expert = 1;
  int64_t num_attention_heads = 0;
  bool bf16 = false;
  bool fp16 = false;
  bool for_release = false;
  bool to_transformers = false;
  bool no_safe_serialization = false;
  bool use_distributed_optimizer = false;
  bool print_structure = false;
  bool no_optimizer = false;
  bool no_checking = false;
};

void add_flags(FlagTable& flags, ConversionOptions& o) {
  flags.group("what");
  flags
      .add_optional("--load-dir,--load_path,--load,--input_folder", o.load,
                    "Checkpoint to read: any format; a directory of --save, of an iteration, or "
                    "of a Hugging Face model; a file of Megatron-LM, a .zip archive.")
      .required();
  flags
      .add_optional("--save-dir,--save_path,--save,--output_folder", o.save,
                    "Directory to write to.")
      .required();
  flags.add_optional("--ckpt-step", o.ckpt_step, "Iteration to read instead of the latest.");
  flags.add_optional("--model-type", o.model_type,
                     "GPT, BERT or T5, as a check: the model of the source is recognised.");
  flags.add_optional("--loader", o.loader, "Not needed: the format is always recognised.");
  flags.add("--saver", o.saver,
            "Format to write: megatron or legacy, megatron-te, megatron-layernorm (before "
            "2023-09), core, "
            "mcore or megatron-core (local layers), core-te or mcore-te (Transformer Engine's), "
            "torch_dist, native, hf.");
  flags.add_switch("--convert_checkpoint_from_megatron_to_transformers", o.to_transformers,
                   "The same as --saver hf.");
  flags.add_switch("--print-checkpoint-structure", o.print_structure,
                   "List the tensors of the source.");
  flags.add_optional(
      "--saver-transformer-impl", o.saver_transformer_impl,
      "local or transformer_engine: the kind of layers for --saver megatron and core.");
  flags.add_switch("--for_release", o.for_release, "Write it as iteration 0, a release.");
  flags.add_switch("--no-optimizer", o.no_optimizer, "Leave the optimizer's state out.");
  flags.add_switch("--use_distributed_optimizer", o.use_distributed_optimizer,
                   "Write state as distrib_optim.pt, not beside the weights.");
  flags.add_optional("--num-attention-heads", o.num_attention_heads,
                     "Attention heads, for a checkpoint without settings.");
  flags.group("layout");
  flags.add_optional(
      "--target-tensor-parallel-size,--target_tensor_model_parallel_size,"
      "--target_tp",
      o.tensor, "Tensor parallel ranks; default: as in the source.");
  flags.add_optional(
      "--target-pipeline-parallel-size,--target_pipeline_model_parallel_size,"
      "--target_pp",
      o.pipeline, "Pipeline stages; default: as in the source.");
  flags.add("--target-virtual-pipeline-size", o.virtual_pipeline, "Model chunks of a stage.");
  flags.add("--target_data_parallel_size,--target_dp", o.data,
            "Data parallel ranks, for the flat buffers of --use_distributed_optimizer.");
  flags.add_optional(
      "--target_params_dtype,--params-dtype", o.params_dtype,
      "fp32, fp16 or bf16 weights; default: as in the source. fp32 are the optimizer's "
      "main parameters, if the source has them.");
  flags.add_switch("--bf16", o.bf16, "The same as --target_params_dtype bf16.");
  flags.add_switch("--fp16", o.fp16, "The same as --target_params_dtype fp16.");
  flags.add("--target-expert-parallel-size", o.expert,
            "1: files that are written hold all experts.");
  flags.add_optional("--true-vocab-size", o.true_vocab_size,
                     "Ids of the tokenizer; further rows are padding.");
  flags.add_optional("--vocab-file", o.vocab_file, "vocab.json, for the number of ids.");
  flags.add_optional("--make_vocab_size_divisible_by", o.divisible_by,
                     "Unit of padding; default: the source's, else 128.");
  flags.add("--max_shard_size", o.max_shard_size, "hf: largest file, such as 10GB or 500MiB.");
  flags.add_switch("--no-safe-serialization", o.no_safe_serialization,
                   "hf: write pytorch_model.bin as torch.save does, not safetensors.");
  flags.add_optional("--default-eos-token-id", o.default_end_token,
                     "hf: the token that ends a text, if neither the source nor a tokenizer names "
                     "one.");
  flags.group("accepted for compatibility");
  flags.add_optional("--megatron-path", o.megatron_path, "Not needed.");
  flags.add_optional("--tokenizer_name", o.tokenizer_name,
                     "hf: whose tokenizer files are copied: a directory, or the name of a model in "
                     "Hugging Face's cache.");
  flags.add_optional("--tokenizer-model", o.tokenizer_model, "Not needed.");
  flags.add_optional("--position-embedding-type", o.position_embedding_type,
                     "Not needed: stored in the source.");
  flags.add_optional("--loader-transformer-impl", o.loader_transformer_impl,
                     "Not needed: names are recognised.");
  flags.add_optional("--model-size", o.model_size, "Not needed: config.json has it.");
  flags.add("--checkpoint-type", o.checkpoint_type, "hf: Meta's own files are not read.");
  flags.add("--max-queue-size", o.max_queue_size, "Not needed.");
  flags.add_optional("--num_extract_workers", o.num_extract_workers, "Not needed.");
  flags.add_optional("--num_merge_workers", o.num_merge_workers, "Not needed.");
  flags.group("checking");
  flags.add_switch("--no-checking", o.no_checking,
                   "Neither verify the written tensors nor compare the models' logits.");
}

// "10GB", "500MiB" or bytes. Compat: transformers reads a final lower-case b as bits.
int64_t bytes_of_size(const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {
      {"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0}, {"GB", 1e9},     {"MB", 1e6},
      {"KB", 1e3},           {"Gb", 1e9 / 8},    {"Mb", 1e6 / 8}, {"Kb", 1e3 / 8}, {"", 1.0}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(error == std::errc() ? end : text.data());
  for (const Unit& known : kUnits) {
    if (error == std::errc() && unit == known.name && number * known.bytes >= 1) {
      return static_cast<int64_t>(number * known.bytes);
    }
  }
  throw ConfigError(
      fmt::format("--max_shard_size {} is not a size; write 10GB, 500MiB or a number of "
                  "bytes",
                  text));
}

// A buffer, which is fp32 in models of any dtype.
constexpr std::string_view kExpertBias = ".router.expert_bias";

// Formats to write by their names.
struct Saver {
  const char* name;
  SaveFormat format;
  MegatronNaming naming;
};
constexpr Saver kSavers[] = {
    {"megatron", SaveFormat::kMegatron, MegatronNaming::kLegacy},
    {"legacy", SaveFormat::kMegatron, MegatronNaming::kLegacy},
    {"megatron-layernorm", SaveFormat::kMegatron, MegatronNaming::kLegacyLayerNorm},
    {"megatron-te", SaveFormat::kMegatron, MegatronNaming::kLegacyFused},
    {"core", SaveFormat::kMegatronCore, MegatronNaming::kCore},
    {"mcore", SaveFormat::kMegatronCore, MegatronNaming::kCore},
    {"megatron-core", SaveFormat::kMegatronCore, MegatronNaming::kCore},
    {"core-te", SaveFormat::kMegatronCore, MegatronNaming::kCoreFused},
    {"mcore-te", SaveFormat::kMegatronCore, MegatronNaming::kCoreFused},
    {"torch_dist", SaveFormat::kTorchDist, MegatronNaming::kCoreFused},
    {"native", SaveFormat::kNative, MegatronNaming::kLegacy},
    {"hf", SaveFormat::kHuggingFace, MegatronNaming::kLegacy},
};

std::string saver_names() {
  std::vector<std::string_view> names;
  for (const Saver& saver : kSavers) names.emplace_back(saver.name);
  return fmt::to_string(fmt::join(names, ", "));
}

struct Target {
  SaveFormat format = SaveFormat::kMegatron;
  MegatronLayout layout;
};

Target target_of(const ConversionOptions& o, const ArgMap& args) {
  const std::string name = o.to_transformers ? "hf" : o.saver;
  const auto* saver =
      std::ranges::find(kSavers, name, [](const Saver& s) { return std::string(s.name); });
  if (saver == std::end(kSavers)) {
    throw ConfigError(fmt::format("--saver {} is not known; use one of {}", name, saver_names()));
  }
  Target target{saver->format, {.naming = saver->naming}};
  if (!o.saver_transformer_impl.empty()) {
    const bool is_fused = o.saver_transformer_impl == "transformer_engine";
    if (!is_fused && o.saver_transformer_impl != "local") {
      throw ConfigError(
          fmt::format("--saver-transformer-impl {} must be local or transformer_engine",
                      o.saver_transformer_impl));
    }
    MegatronNaming& naming = target.layout.naming;
    if (is_core(naming)) {
      naming = is_fused ? MegatronNaming::kCoreFused : MegatronNaming::kCore;
    } else if (naming != MegatronNaming::kLegacyLayerNorm) {
      naming = is_fused ? MegatronNaming::kLegacyFused : MegatronNaming::kLegacy;
    }
  }
  const auto size = [&](int64_t given, const char* stored) {
    if (given > 0) return given;
    const auto found = args.find(stored);
    const int64_t* value = found != args.end() ? std::get_if<int64_t>(&found->second) : nullptr;
    return value != nullptr ? *value : 1;
  };
  target.layout.tensor_model_parallel_size = size(o.tensor, "tensor_model_parallel_size");
  target.layout.pipeline_model_parallel_size = size(o.pipeline, "pipeline_model_parallel_size");
  target.layout.virtual_pipeline_model_parallel_size = o.virtual_pipeline;
  target.layout.with_optimizer = !o.no_optimizer;
  target.layout.use_distributed_optimizer = o.use_distributed_optimizer;
  target.layout.data_parallel_size = std::max<int64_t>(o.data, 1);
  return target;
}

std::optional<DType> dtype_of(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "fp32" || name == "float32") return DType::kFloat32;
  if (name == "fp16" || name == "float16") return DType::kFloat16;
  if (name == "bf16" || name == "bfloat16") return DType::kBFloat16;
  throw ConfigError(fmt::format("--target_params_dtype {} must be fp32, fp16 or bf16", name));
}

int64_t integer_in(const ArgMap& args, const char* name) {
  const auto found = args.find(name);
  const int64_t* value = found != args.end() ? std::get_if<int64_t>(&found->second) : nullptr;
  return value != nullptr ? *value : 0;
}

// Ids of the tokenizer; 0 if unknown.
int64_t known_vocab_size(const ConversionOptions& o, const ArgMap& args) {
  if (o.true_vocab_size > 0) return o.true_vocab_size;
  if (!o.vocab_file.empty()) return static_cast<int64_t>(read_json(o.vocab_file).size());
  if (const int64_t size = true_vocab_size(args); size > 0) return size;
  return integer_in(args, "orig_vocab_size");
}

// Resizes the vocabulary to the rows that the target's ranks need.
void fit_vocabulary(CheckpointContents& contents, const ConversionOptions& o, const Target& target,
                    int64_t vocab_size) {
  const int64_t rows = vocabulary_of(contents).shape[0];
  if (vocab_size > rows) {
    throw ConfigError(fmt::format("the model has {} rows for its vocabulary, fewer than {} ids",
                                  rows, vocab_size));
  }
  if (vocab_size > 0 && true_vocab_size(contents.args) > vocab_size) {
    contents.args["true_vocab_size"] = vocab_size;
  }
  const int64_t ranks = target.layout.tensor_model_parallel_size;
  const bool is_megatron = target.format == SaveFormat::kMegatron ||
                           target.format == SaveFormat::kMegatronCore ||
                           target.format == SaveFormat::kTorchDist;
  if (!is_megatron) return;
  if (vocab_size == 0) {
    if (rows % ranks == 0) return;
    throw ConfigError(
        fmt::format("the vocabulary of {} rows cannot be divided among {} ranks, and it is not "
                    "known how many of them are padding; give --true-vocab-size",
                    rows, ranks));
  }
  int64_t unit = o.divisible_by > 0 ? o.divisible_by
                                    : integer_in(contents.args, "make_vocab_size_divisible_by");
  if (unit == 0) unit = 128;
  pad_vocabulary(contents, padded_vocab_size(vocab_size, unit, ranks));
}

// True if `inner` is the directory `outer`, or below it. REQUIRES: both are canonical.
bool is_within(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// Throws ConfigError if the result would replace the source, or be written into it.
void refuse_source_as_target(const ConversionOptions& o, const Target& target,
                             const CheckpointContents& contents) {
  const fs::path from = fs::canonical(contents.directory);
  const fs::path to = fs::weakly_canonical(o.save);
  // A rank's file: it may have a model beside it, whose files have other names.
  if (from.extension() == ".pt" && target.format == SaveFormat::kHuggingFace) return;
  fs::path written = to;
  if (target.format != SaveFormat::kHuggingFace) {
    const int64_t iteration = o.for_release ? 0 : contents.iteration;
    const bool is_release = iteration == 0 && target.format != SaveFormat::kNative;
    written = fs::weakly_canonical(
        to / (is_release ? fs::path(kReleaseName) : iteration_directory_name(iteration)));
  }
  if (to != fs::canonical(o.load) && !is_within(to, from) && !is_within(from, written)) return;
  throw ConfigError(fmt::format(
      "--save-dir {}: the source {} would be overwritten; choose a directory of its own", o.save,
      contents.directory.string()));
}

void warn_of_optimizer_flags(const ConversionOptions& o, bool is_dropped) {
  const char* why = is_dropped ? "--no-optimizer leaves the optimizer's state out"
                               : "the source has no optimizer state";
  if (o.use_distributed_optimizer) {
    warn(fmt::format("--use_distributed_optimizer has no effect: {}", why));
  }
  if (o.data != 1) {
    warn(fmt::format("--target_data_parallel_size {} has no effect: {}", o.data, why));
  }
}

void expect_model_type(const ConversionOptions& o, const CheckpointSource& source) {
  if (o.model_type.empty() || o.model_type == name_of(source.kind())) return;
  throw ConfigError(fmt::format("--model-type {}: {} is a {}; give that, or leave the flag out",
                                o.model_type, source.directory().string(), name_of(source.kind())));
}

// Settings for a checkpoint that stores none.
ArgMap settings_given(const ConversionOptions& o) {
  if (o.num_attention_heads == 0) return {};
  return {{"num_attention_heads", o.num_attention_heads}};
}

// The source of a Hugging Face model's tokenizer files; empty if unknown.
fs::path tokenizer_directory(const ConversionOptions& o, const CheckpointSource& source) {
  fs::path own = tokenizer_folder_of(source);
  if (o.tokenizer_name.empty()) return own;
  const std::optional<fs::path> named = find_model_path(o.tokenizer_name);
  if (!named) {
    warn(
        fmt::format("--tokenizer_name {}: there is no such folder, and no model of that name in "
                    "Hugging Face's cache, so no tokenizer files are copied",
                    o.tokenizer_name));
    return own;
  }
  if (!tokenizer_of_model(*named)) {
    warn(
        fmt::format("--tokenizer_name {}: has no tokenizer (tokenizer.json, or vocab.json and "
                    "merges.txt), so no tokenizer files are copied",
                    o.tokenizer_name));
    return own;
  }
  return *named;
}

}  // namespace

int convert_checkpoint(std::span<const std::string> words) {
  if (!words.empty() && words[0] == "zero-to-fp32") {
    return convert_checkpoint(words_of_zero_to_fp32(words.subspan(1)));
  }
  ConversionOptions o;
  FlagTable flags;
  add_flags(flags, o);
  if (!parse_flags(flags,
                   "megatron convert-checkpoint --load-dir DIR --save-dir DIR [flags]\n"
                   "       megatron convert-checkpoint zero-to-fp32 CHECKPOINT OUTPUT [-t TAG]",
                   words)) {
    return 0;
  }
  std::vector<std::string> problems;
  if (o.load.empty()) problems.emplace_back("--load-dir is missing: the checkpoint to read");
  if (o.save.empty() && !o.print_structure) {
    problems.emplace_back("--save-dir is missing: the directory to write to");
  }
  if (!o.model_type.empty() && o.model_type != "GPT" && o.model_type != "BERT" &&
      o.model_type != "T5") {
    problems.push_back(
        fmt::format("--model-type {} cannot be converted; use GPT, BERT or T5", o.model_type));
  }
  if (o.expert != 1) {
    problems.push_back(fmt::format(
        "--target-expert-parallel-size {} must be 1: files that are written hold all experts, and "
        "runs of any size read them",
        o.expert));
  }
  if (o.checkpoint_type != "hf") {
    problems.push_back(
        fmt::format("--checkpoint-type {} must be hf; convert Meta's files with transformers first",
                    o.checkpoint_type));
  }
  if (static_cast<int>(o.bf16) + static_cast<int>(o.fp16) +
          static_cast<int>(!o.params_dtype.empty()) >
      1) {
    problems.emplace_back(
        "--bf16, --fp16 and --target_params_dtype exclude each other; give one of them");
  }
  if (o.bf16) o.params_dtype = "bf16";
  if (o.fp16) o.params_dtype = "fp16";
  if (!problems.empty()) throw ConfigError(problems);

  const std::optional<DType> dtype = dtype_of(o.params_dtype);
  const bool takes_weights = o.no_optimizer && dtype != DType::kFloat32;
  const CheckpointSource source = find_source(o.load, o.ckpt_step, true, LoadFormat::kAuto,
                                              takes_weights ? Parts::kWeights : Parts::kAll);
  expect_model_type(o, source);
  CheckpointContents contents = source.contents(settings_given(o));
  print_line(fmt::format("reading {} ({})", contents.directory.string(), name_of(source.format())));
  if (o.print_structure) print_line(contents_text(contents));
  if (o.save.empty()) return 0;

  const Target target = target_of(o, contents.args);
  refuse_source_as_target(o, target, contents);
  if (const bool is_dropped = o.no_optimizer; is_dropped || !contents.has_optimizer()) {
    warn_of_optimizer_flags(o, is_dropped);
  }
  if (!o.no_optimizer && !contents.optimizer_problem.empty()) {
    print_line(fmt::format("the optimizer's state is left out ({})", contents.optimizer_problem));
  }
  if (has_adapters(contents)) {
    merge_adapters(contents, described_run(source.format(), contents).transformer);
    contents.args["lora_rank"] = int64_t{0};
    print_line("the adapters are added to the weights");
  }
  if (dtype == DType::kFloat32 && contents.sections.contains(kMainParamSection)) {
    contents.sections[kWeightsSection] = contents.sections[kMainParamSection];
  }
  const CheckpointContents before = contents;
  if (dtype) {
    convert_section(contents, kWeightsSection, *dtype);
    for (auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
      if (name.ends_with(kExpertBias)) tensor = before.sections.at(kWeightsSection).at(name);
    }
  }
  if (o.no_optimizer) {
    StoredSection weights = std::move(contents.sections.at(kWeightsSection));
    contents.sections = {{kWeightsSection, std::move(weights)}};
  }
  if (o.for_release) contents.iteration = 0;
  const int64_t vocab_size = known_vocab_size(o, contents.args);
  fit_vocabulary(contents, o, target, vocab_size);
  join_pieces(contents);
  const TrainingArgs run = described_run(source.format(), contents);
  fs::create_directories(o.save);
  const DirectoryLock lock(o.save);
  if (target.format != SaveFormat::kHuggingFace) remove_leftovers(o.save);
  if (target.format == SaveFormat::kNative) {
    const StoredSection& weights = contents.sections.at(kWeightsSection);
    contents.args = native_args(run, contents.args, weights.at(kWordEmbeddings).dtype);
  }

  if (target.format == SaveFormat::kHuggingFace) {
    write_hf_folder(
        o.save, contents, run.transformer,
        {.vocab_size = vocab_size,
         .max_shard_bytes = bytes_of_size(o.max_shard_size),
         .format = o.no_safe_serialization ? WeightsFormat::kTorch : WeightsFormat::kSafetensors,
         .tokenizer = tokenizer_directory(o, source),
         .default_end_token = o.default_end_token});
  } else {
    save_contents(o.save, contents, target.format, target.layout, run.transformer);
  }
  const CheckpointSource result = find_source(o.save, 0, true);
  const CheckpointContents& again = result.contents();
  print_line(fmt::format("wrote {} ({})", again.directory.string(), name_of(result.format())));
  if (o.no_checking) return 0;
  const TransformerConfig source_config = config_of(source, before);
  const int64_t rows = vocab_size > 0 ? vocab_size : source_config.padded_vocab_size;
  expect_same_tensors(contents, again, rows);
  print_line("every tensor was read again and is the same");
  const TransformerConfig result_config = config_of(result, again);
  for (const std::string& line : compare_models({before, source_config}, {again, result_config})) {
    print_line(line);
  }
  return 0;
}

}  // namespace megatron::cli
