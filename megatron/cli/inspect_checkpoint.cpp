#include "megatron/cli/inspect_checkpoint.h"

#include <fmt/format.h>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/torch_file.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/checkpoint_text.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

void inspect_file(const std::filesystem::path& path, bool as_json) {
  if (is_torch_file(path)) {
    // Inspecting a hostile file is harmless and may be the user's intention.
    const TorchFile file(path, {.keep_unexpected_globals = true});
    print_line(as_json ? value_json(file.root()) : value_text(file.root()));
    return;
  }
  const SafetensorsFile file(path);
  CheckpointContents contents;
  contents.directory = path;
  for (const SafetensorsFile::Entry& tensor : file.tensors()) {
    contents.sections["tensors"][tensor.spec.name] = {tensor.spec.shape, tensor.spec.dtype, {}};
  }
  print_line(as_json ? contents_json(contents, "safetensors") : contents_text(contents));
}

// "GPT", or with the name that Hugging Face has for such models: "BERT (megatron-bert)".
std::string model_name(const CheckpointSource& source) {
  const std::string_view kind = name_of(source.kind());
  return source.hf() == nullptr ? std::string(kind)
                                : fmt::format("{} ({})", kind, source.hf()->family->model_type);
}

void inspect_directory(const CheckpointSource& source, bool as_json) {
  const CheckpointContents& contents = source.contents();
  if (as_json) return print_line(contents_json(contents, name_of(source.format())));
  print_line(fmt::format(
      "{}\n{}, format {}, iteration {}, consumed samples {} (training) {} (validation)",
      contents.directory.string(), model_name(source), name_of(source.format()), contents.iteration,
      contents.consumed_train_samples, contents.consumed_valid_samples));
  print_line(contents_text(contents));
  for (const auto& [owner, values] : contents.scalars) {
    print_line(fmt::format("{}:", owner));
    for (const auto& [name, value] : values) {
      print_line(fmt::format("  {} = {}", name, text_of(value)));
    }
  }
  print_line("arguments:");
  for (const auto& [name, value] : contents.args) {
    print_line(fmt::format("  {} = {}", name, text_of(value)));
  }
}

}  // namespace

int inspect_checkpoint(std::span<const std::string> words) {
  std::string load;
  int64_t ckpt_step = 0;
  bool as_json = false;
  FlagTable flags;
  flags.add_optional(
      "--load,--path,--load-dir", load,
      "A checkpoint's directory of any format, or a .pt, .bin or .safetensors file.");
  flags.add_optional("--ckpt-step", ckpt_step, "Iteration to show instead of the latest.");
  flags.add_switch("--json", as_json, "Print JSON.");
  if (!parse_flags(flags, "megatron inspect-checkpoint --load PATH [flags]", words)) return 0;
  if (load.empty()) throw ConfigError("--load is missing; give a directory or file to show");
  if (std::filesystem::is_directory(load)) {
    inspect_directory(find_source(load, ckpt_step, true), as_json);
  } else {
    inspect_file(load, as_json);
  }
  return 0;
}

}  // namespace megatron::cli
