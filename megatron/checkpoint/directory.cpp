#include "megatron/checkpoint/directory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>

#include "megatron/checkpoint/manifest.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/folder.h"
#include "megatron/core/log.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "iter_";
constexpr std::string_view kTrash = ".trash-";
constexpr std::string_view kGlobalStep = "global_step";
constexpr const char* kDeepSpeedTracker = "latest";
constexpr const char* kUniversalTracker = "latest_universal";

std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<int64_t> iteration_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::optional<int64_t> iteration = number_in(std::string_view(name).substr(kPrefix.size()));
  if (!iteration || iteration_directory_name(*iteration) != name) return std::nullopt;
  return iteration;
}

bool is_native(const fs::path& directory) { return fs::exists(directory / kManifestFile); }

[[noreturn]] void refuse_unreadable(const fs::path& path, const std::error_code& error) {
  throw IoError(fmt::format("{}: cannot be looked at: {}; let this user read it and its directory",
                            path.string(), error.message()));
}

// True if the name of any entry of the directory matches.
template <class F>
bool has_entry(const fs::path& directory, F&& is_wanted) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (is_wanted(entry.path())) return true;
  }
  if (error == std::errc::permission_denied) refuse_unreadable(directory, error);
  return false;
}

std::string trimmed(std::string text) {
  constexpr const char* kSpaces = " \t\r\n";
  text.erase(text.find_last_not_of(kSpaces) + 1);
  text.erase(0, text.find_first_not_of(kSpaces));
  return text;
}

[[noreturn]] void fail(const fs::path& path, const char* what, const std::error_code& error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), what, error.message()));
}

// Renames first, so that no reader sees half a checkpoint under its name, even after a power cut.
void remove_checkpoint(const fs::path& directory, const std::string& name) {
  const fs::path trash = directory / fmt::format("{}{}", kTrash, name);
  std::error_code error;
  fs::remove_all(trash, error);  // what an earlier run could not delete
  if (!error) fs::rename(directory / name, trash, error);
  if (error) fail(directory / name, "delete the old checkpoint", error);
  sync_directory(directory);
  fs::remove_all(trash, error);
  if (error) fail(trash, "delete the old checkpoint", error);
}

fs::path checked_iteration(const fs::path& load, int64_t iteration, const char* who) {
  fs::path directory = restored_folder(load / iteration_directory_name(iteration));
  if (format_of(directory)) return directory;
  // DeepSpeed's name of the directory.
  fs::path step = load / fmt::format("{}{}", kGlobalStep, iteration);
  if (format_of(step)) return step;
  const std::vector<int64_t> complete = iterations_in(load);
  throw FormatError(fmt::format(
      "{}: {} names iteration {}, which is not a complete checkpoint; {}", load.string(), who,
      iteration,
      complete.empty() ? std::string("there is no complete one, copy the checkpoint here again")
                       : fmt::format("there are iterations [{}], choose one with --ckpt-step",
                                     fmt::join(complete, ", "))));
}

}  // namespace

std::string_view name_of(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::kNative:
      return "native";
    case CheckpointFormat::kMegatron:
      return "megatron";
    case CheckpointFormat::kDeepSpeed:
      return "deepspeed";
    case CheckpointFormat::kHuggingFace:
      return "hf";
  }
  throw InternalError("name_of: unknown checkpoint format");
}

std::optional<CheckpointFormat> format_of(const fs::path& directory) {
  if (is_native(directory)) return CheckpointFormat::kNative;
  const bool is_megatron = has_entry(directory, [](const fs::path& entry) {
    return entry.filename().string().starts_with("mp_rank_") && fs::is_directory(entry);
  });
  if (is_megatron) return CheckpointFormat::kMegatron;
  const bool is_deepspeed = has_entry(directory, [](const fs::path& entry) {
    const std::string name = entry.filename().string();
    const bool is_layer = name.starts_with("layer_") && name.ends_with("-model_states.pt");
    const bool is_rank = name.find("mp_rank_") != std::string::npos &&
                         (name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt"));
    return is_layer || is_rank;
  });
  if (is_deepspeed) return CheckpointFormat::kDeepSpeed;
  if (fs::exists(directory / "config.json")) return CheckpointFormat::kHuggingFace;
  // Includes formats of PyTorch and Megatron Core that are refused when they are opened.
  if (fs::exists(directory / ".metadata") || fs::exists(directory / "metadata.json")) {
    return CheckpointFormat::kMegatron;
  }
  return std::nullopt;
}

fs::path iteration_directory_name(int64_t iteration) {
  return fmt::format("{}{:07}", kPrefix, iteration);
}

namespace {

// The text of the tracker file, or of the one that becomes it if its checkpoint is there.
std::optional<std::string> tracker_text(const fs::path& directory) {
  if (fs::exists(directory / kTrackerFile)) return trimmed(read_text(directory / kTrackerFile));
  if (!fs::exists(directory / kNextTrackerFile)) return std::nullopt;
  const std::string text = trimmed(read_text(directory / kNextTrackerFile));
  const std::optional<int64_t> iteration = number_in(text);
  if (!iteration && text != kReleaseName) return std::nullopt;
  const fs::path named = iteration ? iteration_directory_name(*iteration) : fs::path(text);
  return format_of(directory / named) ? std::optional(text) : std::nullopt;
}

// True if a checkpoint of this program has a valid manifest, and files of the sizes in it.
bool is_complete(const fs::path& checkpoint) {
  try {
    const Manifest manifest = read_manifest(checkpoint);
    return std::ranges::all_of(manifest.files, [&](const auto& file) {
      std::error_code error;
      const uintmax_t bytes = fs::file_size(checkpoint / file.first, error);
      return !error && bytes == static_cast<uintmax_t>(file.second.bytes);
    });
  } catch (const Error&) {
    return false;
  }
}

// The newest checkpoint here, if it is one of this program's. Nothing tells whether others are
// complete.
std::optional<int64_t> newest_complete_iteration(const fs::path& directory) {
  std::vector<int64_t> iterations = named_iterations(directory);
  std::ranges::reverse(iterations);
  for (const int64_t iteration : iterations) {
    const fs::path checkpoint = directory / iteration_directory_name(iteration);
    const std::optional<CheckpointFormat> format = format_of(checkpoint);
    if (format && format != CheckpointFormat::kNative) return std::nullopt;
    if (format && is_complete(checkpoint)) return iteration;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> latest_iteration(const fs::path& directory) {
  const std::optional<std::string> text = tracker_text(directory);
  if (!text) return newest_complete_iteration(directory);
  if (text == kReleaseName) return std::nullopt;
  const std::optional<int64_t> iteration = number_in(*text);
  if (!iteration) {
    throw FormatError(
        fmt::format("{}: holds \"{}\", expected the number of an iteration; write "
                    "one of [{}] into it",
                    (directory / kTrackerFile).string(), text->substr(0, 40),
                    fmt::join(iterations_in(directory), ", ")));
  }
  return iteration;
}

std::vector<int64_t> iterations_in(const fs::path& directory) {
  std::vector<int64_t> iterations;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::optional<int64_t> iteration = iteration_of(entry.path().filename().string());
    if (iteration && is_native(entry.path())) iterations.push_back(*iteration);
  }
  std::ranges::sort(iterations);
  return iterations;
}

std::vector<int64_t> named_iterations(const fs::path& directory) {
  std::vector<int64_t> iterations;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::optional<int64_t> iteration = iteration_of(entry.path().filename().string());
    if (iteration) iterations.push_back(*iteration);
  }
  std::ranges::sort(iterations);
  return iterations;
}

namespace {

// The iteration in kNextTrackerFile.
std::optional<int64_t> next_iteration(const fs::path& directory) {
  const fs::path next = directory / kNextTrackerFile;
  return fs::exists(next) ? number_in(trimmed(read_text(next))) : std::nullopt;
}

}  // namespace

std::vector<int64_t> foreign_iterations(const fs::path& save,
                                        const std::optional<fs::path>& loaded) {
  std::vector<int64_t> iterations = named_iterations(save);
  if (!loaded) return iterations;
  std::error_code ignored;
  const std::optional<int64_t> own = iteration_of(loaded->filename().string());
  if (own && fs::equivalent(loaded->parent_path(), save, ignored)) {
    const std::optional<int64_t> unnamed = next_iteration(save);
    std::erase_if(iterations,
                  [&](int64_t iteration) { return iteration <= *own || iteration == unnamed; });
  }
  return iterations;
}

namespace {

// Training from random weights beside checkpoints is hardly what was meant.
void refuse_untracked(const fs::path& load) {
  std::vector<int64_t> iterations = named_iterations(load);
  std::erase_if(iterations, [&](int64_t iteration) {
    return !format_of(load / iteration_directory_name(iteration));
  });
  if (iterations.empty()) return;
  throw FormatError(fmt::format(
      "{}: has no {}, but checkpoints of iterations [{}]; choose one with --ckpt-step {}, or write "
      "its number into that file",
      load.string(), kTrackerFile, fmt::join(iterations, ", "), iterations.back()));
}

// True if the folder of a Hugging Face model has weights.
bool has_weights(const fs::path& folder) {
  return has_entry(folder, [](const fs::path& entry) {
    const std::string name = entry.filename().string();
    return name.ends_with(".safetensors") || name.starts_with("pytorch_model");
  });
}

// The checkpoint that the tracker file names, or, without one, the one that is the latest anyway.
std::optional<fs::path> tracked_checkpoint(const fs::path& load) {
  if (tracker_text(load) == kReleaseName) {
    if (format_of(load / kReleaseName)) return load / kReleaseName;
    throw FormatError(fmt::format("{}: names a release, but {} holds no checkpoint",
                                  (load / kTrackerFile).string(), (load / kReleaseName).string()));
  }
  const std::optional<int64_t> latest = latest_iteration(load);
  if (!latest) return std::nullopt;
  fs::path checkpoint = checked_iteration(load, *latest, kTrackerFile);
  if (!fs::exists(load / kTrackerFile)) {
    warn_once(
        fmt::format("{}: has no {}, as if its first save was interrupted; the newest complete "
                    "checkpoint is taken, that of iteration {}",
                    load.string(), kTrackerFile, *latest));
  }
  return checkpoint;
}

std::optional<fs::path> found_checkpoint(const fs::path& load, int64_t ckpt_step) {
  if (ckpt_step > 0) return checked_iteration(load, ckpt_step, "--ckpt-step");
  const std::optional<CheckpointFormat> format = format_of(load);
  if (fs::exists(load / kTrackerFile) || !format) {
    if (std::optional<fs::path> tracked = tracked_checkpoint(load)) return tracked;
  }
  if (format && (*format != CheckpointFormat::kHuggingFace || has_weights(load))) return load;
  // transformers' Trainer saves config.json beside DeepSpeed's directory, and not always weights.
  for (const char* tracker : {kDeepSpeedTracker, kUniversalTracker}) {
    if (!fs::exists(load / tracker)) continue;
    const fs::path named = load / trimmed(read_text(load / tracker));
    if (named.parent_path() == load && format_of(named)) return named;
  }
  if (format) return load;
  refuse_untracked(load);
  return std::nullopt;
}

}  // namespace

std::optional<fs::path> find_checkpoint(const fs::path& load, int64_t ckpt_step) {
  try {
    return found_checkpoint(load, ckpt_step);
  } catch (const fs::filesystem_error& error) {
    refuse_unreadable(error.path1(), error.code());
  }
}

void remove_leftovers(const fs::path& directory) {
  std::vector<fs::path> leftovers;
  std::set<fs::path> places;  // of unfinished checkpoints
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string target = name.substr(0, name.find(".tmp-"));
    if (target != name && (target == kReleaseName || iteration_of(target))) {
      places.insert(directory / target);
    }
    const bool is_tracker =
        target != name && (target == kTrackerFile || target == kNextTrackerFile);
    const bool is_trash = name.starts_with(kTrash) &&
                          std::string_view(name).substr(kTrash.size()).starts_with(kPrefix);
    if (is_tracker || is_trash || name == kStagingName) leftovers.push_back(entry.path());
  }
  for (const fs::path& place : places) remove_unfinished_folders(place);
  if (fs::exists(directory / kTrackerFile) || !tracker_text(directory)) {
    leftovers.push_back(directory / kNextTrackerFile);  // of a save that was stopped
  }
  for (const fs::path& leftover : leftovers) {
    std::error_code error;
    fs::remove_all(leftover, error);
    if (error) fail(leftover, "delete the rest of an interrupted save", error);
  }
}

void remove_old_checkpoints(const fs::path& directory, int64_t keep_last, int64_t retain_interval,
                            const std::vector<int64_t>& foreign) {
  if (keep_last <= 0) return;
  std::vector<int64_t> iterations = iterations_in(directory);
  std::erase_if(iterations, [&](int64_t iteration) {
    return std::ranges::find(foreign, iteration) != foreign.end();
  });
  const std::optional<int64_t> latest = latest_iteration(directory);
  const auto count = static_cast<int64_t>(iterations.size());
  iterations.resize(static_cast<size_t>(std::max<int64_t>(count - keep_last, 0)));
  for (const int64_t iteration : iterations) {
    const bool is_retained = retain_interval > 0 && iteration % retain_interval == 0;
    if (is_retained || iteration == latest) continue;
    remove_checkpoint(directory, iteration_directory_name(iteration).string());
  }
}

}  // namespace megatron
