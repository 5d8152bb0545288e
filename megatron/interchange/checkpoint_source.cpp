#include "megatron/interchange/checkpoint_source.h"

#include <fmt/format.h>

#include <cstdlib>
#include <system_error>
#include <utility>

#include "megatron/checkpoint/load.h"
#include "megatron/core/error.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/parts.h"
#include "megatron/formats/torch_file.h"
#include "megatron/formats/unzip.h"
#include "megatron/interchange/deepspeed.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/hf/peft_folder.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/reader.h"
#include "megatron/interchange/model_kind.h"
#include "megatron/interchange/source_settings.h"

namespace megatron {

struct CheckpointSource::Opened {
  std::filesystem::path directory;
  CheckpointFormat format = CheckpointFormat::kNative;
  std::shared_ptr<const UnpackedArchive> archive;
  Parts parts = Parts::kAll;
  std::optional<HfModel> hf;
  std::optional<MegatronCheckpoint> megatron;
  std::optional<CheckpointContents> contents;
  bool has_fallback = false;  // contents were made with one
};

CheckpointSource::CheckpointSource(std::filesystem::path directory, CheckpointFormat format,
                                   std::shared_ptr<const UnpackedArchive> archive, Parts parts)
    : opened_(std::make_shared<Opened>()) {
  opened_->directory = std::move(directory);
  opened_->format = format;
  opened_->archive = std::move(archive);
  opened_->parts = parts;
  if (format != CheckpointFormat::kHuggingFace) return;
  opened_->hf = read_hf_config(opened_->directory);
  opened_->contents = open_hf_checkpoint(opened_->directory, *opened_->hf);
  opened_->contents->args = settings_of(*opened_->hf);
}

const std::filesystem::path& CheckpointSource::directory() const { return opened_->directory; }

CheckpointFormat CheckpointSource::format() const { return opened_->format; }

const HfModel* CheckpointSource::hf() const { return opened_->hf ? &*opened_->hf : nullptr; }

ModelKind CheckpointSource::kind() const {
  if (opened_->hf) return opened_->hf->transformer.kind;
  if (opened_->format != CheckpointFormat::kMegatron) return kind_of(contents());
  open_megatron();
  return opened_->megatron->kind();
}

void CheckpointSource::open_megatron() const {
  if (!opened_->megatron) opened_->megatron.emplace(opened_->directory, opened_->parts);
}

const ArgMap& CheckpointSource::args() const {
  if (opened_->format != CheckpointFormat::kMegatron) return contents().args;
  open_megatron();
  return opened_->megatron->args();
}

const CheckpointContents& CheckpointSource::contents(const ArgMap& fallback) const {
  Opened& o = *opened_;
  const auto stores_no_settings = [&] {
    if (o.format == CheckpointFormat::kMegatron) return args().empty();
    // For DeepSpeed: includes sizes inferred from tensors.
    return o.format == CheckpointFormat::kDeepSpeed && !args().contains("num_attention_heads");
  };
  const bool lacks_fallback = !fallback.empty() && stores_no_settings();
  if (o.contents && (o.has_fallback || !lacks_fallback)) return *o.contents;
  switch (o.format) {
    case CheckpointFormat::kMegatron:
      open_megatron();
      o.contents = o.megatron->contents(fallback);
      o.has_fallback = lacks_fallback;
      break;
    case CheckpointFormat::kDeepSpeed:
      if constexpr (kHasDeepSpeed) {
        o.contents = open_deepspeed_checkpoint(o.directory, fallback, o.parts);
        o.has_fallback = !fallback.empty();
      } else {
        refuse_missing(o.directory.string() + ": the checkpoint format of DeepSpeed",
                       "MG_DEEPSPEED");
      }
      break;
    default:
      o.contents = open_checkpoint(o.directory);
  }
  return *o.contents;
}

CheckpointSource CheckpointSource::with_adapters(const std::filesystem::path& folder) const {
  CheckpointSource source;
  source.opened_ = std::make_shared<Opened>(*opened_);
  Opened& o = *source.opened_;
  CheckpointContents made = contents();
  StoredSection& weights = made.sections.at(kWeightsSection);
  TransformerConfig config = o.hf ? o.hf->transformer : described_run(o.format, made).transformer;
  if (has_adapters(made)) {
    throw Unsupported(fmt::format("{}: the model {} has adapters of its own; merge them first",
                                  folder.string(), o.directory.string()));
  }
  PeftAdapters adapters = read_peft_adapters(folder, config, weights, hf_model_type_of(made.args));
  weights.merge(adapters.weights);
  made.sections = {{kWeightsSection, std::move(weights)}};
  made.is_release = true;
  made.args["lora_rank"] = adapters.rank;
  made.args["lora_alpha"] = adapters.alpha;
  made.args["lora_dropout"] = adapters.dropout;
  made.args["lora_target_modules"] = adapters.layers;
  if (o.hf) {
    o.hf->transformer.lora_rank = adapters.rank;
    o.hf->transformer.lora_alpha = adapters.alpha;
    o.hf->transformer.lora_dropout = adapters.dropout;
    o.hf->transformer.lora_target_modules = adapters.layers;
  }
  o.contents = std::move(made);
  o.has_fallback = true;
  return source;
}

namespace {

namespace fs = std::filesystem;

struct Found {
  fs::path path;
  CheckpointFormat format;
  std::shared_ptr<const UnpackedArchive> archive = nullptr;
};

std::optional<Found> find(const fs::path& load, int64_t ckpt_step);

// Archives often have one folder in another: the first that is a checkpoint or holds anything else.
// With an iteration number, `load` is the folder above the checkpoint.
fs::path content_of_archive(fs::path folder, int64_t ckpt_step) {
  while (!format_of(folder)) {
    auto entry = fs::directory_iterator(folder);
    if (entry == fs::directory_iterator() || !entry->is_directory()) break;
    const fs::path only = entry->path();
    if (++entry != fs::directory_iterator() || (ckpt_step > 0 && format_of(only))) break;
    folder = only;
  }
  return folder;
}

// The message with names of files in the archive: "a.zip/run: has no ...".
std::string within_archive(std::string message, const UnpackedArchive& archive,
                           const fs::path& path) {
  const std::string unpacked = archive.directory().string();
  for (size_t at = message.find(unpacked); at != std::string::npos; at = message.find(unpacked)) {
    message.replace(at, unpacked.size(), path.string());
  }
  return message;
}

std::optional<Found> find_in_archive(const fs::path& load, int64_t ckpt_step) {
  const auto archive = std::make_shared<const UnpackedArchive>(load);
  try {
    std::optional<Found> found =
        find(content_of_archive(archive->directory(), ckpt_step), ckpt_step);
    if (found) found->archive = archive;
    return found;
  } catch (const FormatError& error) {
    throw FormatError(within_archive(error.what(), *archive, load));
  }
}

// In the folder of a rank: the checkpoint that it is a part of, or its file alone.
std::optional<Found> find_by_rank(const fs::path& folder) {
  const std::optional<fs::path> file = rank_file(folder);
  if (!file) return std::nullopt;
  const fs::path whole = fs::canonical(folder);
  if (is_rank_folder(whole)) return Found{whole.parent_path(), CheckpointFormat::kMegatron};
  return Found{*file, CheckpointFormat::kMegatron};
}

std::optional<Found> find(const fs::path& load, int64_t ckpt_step) {
  std::error_code unreadable;  // find_checkpoint() says so
  if (fs::is_regular_file(load, unreadable)) {
    if (is_archive_of_files(load)) return find_in_archive(load, ckpt_step);
    if (is_torch_file(load)) return Found{load, CheckpointFormat::kMegatron};
    return std::nullopt;
  }
  if (const auto found = find_checkpoint(load, ckpt_step)) return Found{*found, *format_of(*found)};
  return find_by_rank(load);
}

// The folder of adapters, on the model that it names: a path, also relative to the folder, or a
// model in the cache of Hugging Face's tools.
CheckpointSource adapted_source(const std::filesystem::path& folder) {
  const std::string base = base_model_of(folder);
  const std::filesystem::path beside = folder / base;
  const std::filesystem::path path =
      std::filesystem::exists(beside)
          ? beside
          : model_path(base, fmt::format("{}: base_model_name_or_path", folder.string()).c_str());
  return find_source(path, 0, true).with_adapters(folder);
}

}  // namespace

CheckpointSource find_source(const fs::path& load, int64_t ckpt_step, bool must_exist,
                             LoadFormat load_format, Parts parts) {
  if (ckpt_step < 0) {
    throw ConfigError(fmt::format(
        "--ckpt-step {} must be an iteration, from 1 on; leave the flag out for the latest one",
        ckpt_step));
  }
  if (load.empty()) return {};
  if (is_peft_folder(load)) return adapted_source(load);
  const std::optional<Found> found = find(load, ckpt_step);
  if (!found) {
    if (!must_exist) return {};
    throw ConfigError(fmt::format(
        "--load {}: there is no checkpoint (no {}) and no Hugging Face model (no config.json); "
        "check the directory",
        load.string(), kTrackerFile));
  }
  if (load_format != LoadFormat::kAuto && name_of(load_format) != name_of(found->format)) {
    throw ConfigError(fmt::format("--load-format {}: {} is of the format {}; use it, or auto",
                                  name_of(load_format), found->path.string(),
                                  name_of(found->format)));
  }
  return {found->path, found->format, found->archive, parts};
}

}  // namespace megatron
