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
//   latest_checkpointed_iteration.txt.next   becomes the file above when its checkpoint is there
//   iter_0000030.tmp-<random>/           being written, or left by a killed program
//   iter_0000020.tmp-<random>-replaced/  being replaced, where names cannot be exchanged
//   .lock                                exists while a run saves here (DirectoryLock)
//   .trash-iter_0000010/                 being deleted
//   .staging/                            being written for another system
namespace megatron {

inline constexpr const char* kTrackerFile = "latest_checkpointed_iteration.txt";
// The pending tracker file, written before a first checkpoint is complete. It counts while there is
// no tracker file, if its checkpoint is there: a first save was stopped before its last step.
inline constexpr const char* kNextTrackerFile = "latest_checkpointed_iteration.txt.next";
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

// The iteration in the tracker file. If there is no such file, that of the newest checkpoint which
// is known to be complete: the one in kNextTrackerFile, or one of this program with a good
// manifest. None if there is neither, or if the tracker names a release. Throws FormatError if the
// file does not hold a number.
std::optional<int64_t> latest_iteration(const std::filesystem::path& directory);

// This program's complete checkpoints in a directory, oldest first.
std::vector<int64_t> iterations_in(const std::filesystem::path& directory);

// Iterations with a directory here, of this program or another, complete or not, oldest first.
std::vector<int64_t> named_iterations(const std::filesystem::path& directory);

// The iterations in the directory of --save that belong to other runs: if the checkpoint `loaded`
// is one of them, all but those up to it and one in kNextTrackerFile, else all.
std::vector<int64_t> foreign_iterations(const std::filesystem::path& save,
                                        const std::optional<std::filesystem::path>& loaded);

// The directory of the checkpoint for --load and --ckpt-step (0: the latest). `load` may be the
// directory of --save or of one checkpoint, of any format (format_of). Warns if there is no tracker
// file, and takes that of latest_iteration(). None if there is no checkpoint at all: an empty,
// absent or foreign directory. Throws FormatError, which lists the existing ones, if the requested
// checkpoint is missing, or if the latest one is unknown.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& load,
                                                     int64_t ckpt_step = 0);

// Removes the remains of interrupted saves and deletions, and restores a checkpoint whose
// replacement was interrupted. REQUIRES: no other program saves to this directory (DirectoryLock).
// Throws IoError.
void remove_leftovers(const std::filesystem::path& directory);

// Deletes all but the newest keep_last checkpoints (0: deletes none). Keeps multiples of
// retain_interval (0: none), the checkpoint in the tracker file and the `foreign` ones, which do
// not count, either.
void remove_old_checkpoints(const std::filesystem::path& directory, int64_t keep_last,
                            int64_t retain_interval, const std::vector<int64_t>& foreign = {});

}  // namespace megatron
