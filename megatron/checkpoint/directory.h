#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

// The directory of --save and --load:
//
//   latest_checkpointed_iteration.txt    "20", as in Megatron-LM; replaced by rename
//   iter_0000020/                        a checkpoint; appears when it is complete
//   iter_0000030.tmp-<pid>/              being written, or left by a killed program
//   .lock                                exists while a run saves here (DirectoryLock)
//   .trash-iter_0000010-<pid>/           being deleted
//   .staging/                            being written for another system
namespace megatron {

inline constexpr const char* kTrackerFile = "latest_checkpointed_iteration.txt";
// The directory of weights without an iteration; the tracker file has the same word.
inline constexpr const char* kReleaseName = "release";
// The common directory of a run's ranks while they write a checkpoint for another system.
inline constexpr const char* kStagingName = ".staging";

// The system that wrote a checkpoint.
enum class CheckpointFormat {
  kNative,       // manifest.json
  kMegatron,     // Megatron-LM: mp_rank_XX[_XXX]/model_optim_rng.pt, or .metadata (torch_dist)
  kDeepSpeed,    // DeepSpeed: layer_XX-model_XX-model_states.pt, or mp_rank_XX_model_states.pt
  kHuggingFace,  // config.json
};
// "native", "megatron", "deepspeed", "hf"
std::string_view name_of(CheckpointFormat format);

// The format of one checkpoint's directory; none if it holds no checkpoint.
std::optional<CheckpointFormat> format_of(const std::filesystem::path& directory);

// "iter_0000020"
std::filesystem::path iteration_directory_name(int64_t iteration);

// The iteration in the tracker file; none if there is no such file, or it names a release. Throws
// FormatError if the file does not hold a number.
std::optional<int64_t> latest_iteration(const std::filesystem::path& directory);

// This program's complete checkpoints in a directory, oldest first.
std::vector<int64_t> iterations_in(const std::filesystem::path& directory);

// Iterations with a directory here, of this program or another, complete or not, oldest first.
std::vector<int64_t> named_iterations(const std::filesystem::path& directory);

// The iterations in the directory of --save that belong to other runs: all except those up to the
// checkpoint `loaded`, if that is one of them.
std::vector<int64_t> foreign_iterations(const std::filesystem::path& save,
                                        const std::optional<std::filesystem::path>& loaded);

// The directory of the checkpoint for --load and --ckpt-step (0: the latest). `load` may be the
// directory of --save or of one checkpoint, of any format (format_of). None if there is no
// checkpoint at all: an empty, absent or foreign directory. Throws FormatError, which lists the
// existing ones, if the requested checkpoint is missing, or if no file says which is the latest.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& load,
                                                     int64_t ckpt_step = 0);

// Removes what interrupted saves and deletions have left. Call at the start of a program, while no
// other one saves to this directory. Throws IoError.
void remove_leftovers(const std::filesystem::path& directory);

// Deletes all but the newest keep_last checkpoints (0: deletes none). Keeps multiples of
// retain_interval (0: none), the checkpoint in the tracker file and the `foreign` ones, which do
// not count, either.
void remove_old_checkpoints(const std::filesystem::path& directory, int64_t keep_last,
                            int64_t retain_interval, const std::vector<int64_t>& foreign = {});

}  // namespace megatron
