#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

// The directory of --save and --load:
//
//   latest_checkpointed_iteration.txt    "20", as Megatron-LM's; replaced by rename
//   iter_0000020/                        a checkpoint; appears when it is complete
//   iter_0000030.tmp-<pid>/              one being written, or what a killed program left
//   .lock                                while a run saves here (DirectoryLock)
//   .trash-iter_0000010-<pid>/           one being deleted
//   .staging/                            one being written for another system
namespace megatron {

inline constexpr const char* kTrackerFile = "latest_checkpointed_iteration.txt";
// The directory of weights that no iteration made; the tracker file says the same word.
inline constexpr const char* kReleaseName = "release";
// Where the ranks of a run meet to write a checkpoint for another system.
inline constexpr const char* kStagingName = ".staging";

// Who wrote the directory of a checkpoint.
enum class CheckpointFormat {
  kNative,       // manifest.json
  kMegatron,     // Megatron-LM: mp_rank_XX[_XXX]/model_optim_rng.pt
  kDeepSpeed,    // BigScience's Megatron-DeepSpeed: layer_XX-model_XX-model_states.pt
  kHuggingFace,  // config.json
};
// "native", "megatron", "deepspeed", "hf"
std::string_view name_of(CheckpointFormat format);

// The format of the directory of one checkpoint; none when it holds no checkpoint. Throws
// Unsupported for PyTorch's distributed checkpoints.
std::optional<CheckpointFormat> format_of(const std::filesystem::path& directory);

// "iter_0000020"
std::filesystem::path iteration_directory_name(int64_t iteration);

// The iteration of the tracker file; none when there is no such file, or it names a release. Throws
// FormatError when the file does not hold a number.
std::optional<int64_t> latest_iteration(const std::filesystem::path& directory);

// The complete checkpoints of this program in a directory, oldest first.
std::vector<int64_t> iterations_in(const std::filesystem::path& directory);

// Iterations that have a directory here, of this program or another, complete or not, oldest first.
std::vector<int64_t> named_iterations(const std::filesystem::path& directory);

// The iterations in the directory of --save that belong to other runs: all but those up to the
// checkpoint `loaded`, if that is one of them.
std::vector<int64_t> foreign_iterations(const std::filesystem::path& save,
                                        const std::optional<std::filesystem::path>& loaded);

// The directory of one checkpoint for --load and --ckpt-step (0: the latest). `load` may be the
// directory of --save or that of one checkpoint, of any format (format_of). None when there is no
// checkpoint at all: an empty, absent or foreign directory. Throws FormatError when the one that is
// asked for is not there, naming those that are.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& load,
                                                     int64_t ckpt_step = 0);

// Removes what interrupted saves and deletions left. Call it when a program starts and no other
// saves to this directory. Throws IoError.
void remove_leftovers(const std::filesystem::path& directory);

// Deletes all but the newest keep_last checkpoints (0: none is deleted). Multiples of
// retain_interval (0: no such), the one that the tracker names and the `foreign` ones stay; the
// latter do not count either.
void remove_old_checkpoints(const std::filesystem::path& directory, int64_t keep_last,
                            int64_t retain_interval, const std::vector<int64_t>& foreign = {});

}  // namespace megatron
