#include "megatron/interchange/checkpoint_source.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/checkpoint/load.h"
#include "megatron/core/error.h"
#include "megatron/interchange/deepspeed/reader.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/megatron/reader.h"
#include "megatron/interchange/model_kind.h"
#include "megatron/interchange/source_settings.h"

namespace megatron {

struct CheckpointSource::Opened {
  std::filesystem::path directory;
  CheckpointFormat format = CheckpointFormat::kNative;
  std::optional<HfModel> hf;
  std::optional<MegatronCheckpoint> megatron;
  std::optional<CheckpointContents> contents;
  bool has_fallback = false;  // contents were made with one
};

CheckpointSource::CheckpointSource(std::filesystem::path directory, CheckpointFormat format)
    : opened_(std::make_shared<Opened>()) {
  opened_->directory = std::move(directory);
  opened_->format = format;
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
  if (!opened_->megatron) opened_->megatron.emplace(opened_->directory);
}

const ArgMap& CheckpointSource::args() const {
  if (opened_->format != CheckpointFormat::kMegatron) return contents().args;
  open_megatron();
  return opened_->megatron->args();
}

const CheckpointContents& CheckpointSource::contents(const ArgMap& fallback) const {
  Opened& o = *opened_;
  const bool lacks_fallback =
      o.format == CheckpointFormat::kMegatron && args().empty() && !fallback.empty();
  if (o.contents && (o.has_fallback || !lacks_fallback)) return *o.contents;
  switch (o.format) {
    case CheckpointFormat::kMegatron:
      open_megatron();
      o.contents = o.megatron->contents(fallback);
      o.has_fallback = lacks_fallback;
      break;
    case CheckpointFormat::kDeepSpeed:
      o.contents = open_deepspeed_checkpoint(o.directory);
      break;
    default:
      o.contents = open_checkpoint(o.directory);
  }
  return *o.contents;
}

CheckpointSource find_source(const std::filesystem::path& load, int64_t ckpt_step, bool must_exist,
                             LoadFormat load_format) {
  if (load.empty()) return {};
  const std::optional<std::filesystem::path> found = find_checkpoint(load, ckpt_step);
  if (!found) {
    if (!must_exist) return {};
    throw ConfigError(fmt::format(
        "--load {}: there is no checkpoint (no {}) and no Hugging Face model (no config.json); "
        "check the directory",
        load.string(), kTrackerFile));
  }
  const CheckpointFormat format = *format_of(*found);
  if (load_format != LoadFormat::kAuto && name_of(load_format) != name_of(format)) {
    throw ConfigError(fmt::format("--load-format {}: {} is of the format {}; use it, or auto",
                                  name_of(load_format), found->string(), name_of(format)));
  }
  return {*found, format};
}

}  // namespace megatron
