#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/arg_map.h"
#include "megatron/formats/torch_file.h"
#include "megatron/interchange/parts.h"
#include "megatron/nn/parameter.h"

// The files of the ranks that saved a checkpoint with Megatron-LM.
namespace megatron {

// A parameter in a rank's file, in the order of the optimizer's numbering.
struct RankParameter {
  std::string ours;    // whole name, with the number of the layer in the model
  std::string path;    // its key in the file
  Shape shape;         // of the rank's shard
  ParameterInfo info;  // its sharding is that of this rank; is_copy: not saved under `ours`
  const PyTensor* tensor =
      nullptr;  // in a file that is read; that of an expert has no axis of them

  bool is_expert() const { return info.gradient_axes.contains(MeshAxis::kExpertData); }
};

// A tensor-, pipeline- and expert-parallel rank. Dense parameters are in the file of each of the
// latter.
struct RankFiles {
  int64_t tensor = 0;
  int64_t pipeline = 0;
  int64_t expert = 0;
  std::shared_ptr<TorchFile> file;
  std::shared_ptr<TorchFile> optimizer_file;       // distrib_optim.pt
  std::vector<std::vector<RankParameter>> chunks;  // by virtual stage

  PyValue root() const { return file->root(); }
  std::vector<RankParameter> parameters() const {
    std::vector<RankParameter> all;
    for (const auto& chunk : chunks) all.insert(all.end(), chunk.begin(), chunk.end());
    return all;
  }
};

// The file of weights in a rank's folder, if there is one.
std::optional<std::filesystem::path> rank_file(const std::filesystem::path& folder);

// True if the folder has the name of a rank, mp_rank_XX.
bool is_rank_folder(const std::filesystem::path& folder);

// Opens the files of all ranks in a directory, by expert rank, then pipeline rank, then tensor
// rank; leaves chunks empty. `directory` may also be the file of a single rank. Throws FormatError
// if folders are missing.
std::vector<RankFiles> open_rank_files(const std::filesystem::path& directory,
                                       Parts parts = Parts::kAll);

// The leaves of nested dictionaries, their keys joined with dots.
std::vector<std::pair<std::string, PyValue>> flattened(PyValue value);

// A number, or the element of a one-element tensor.
std::optional<double> number_in(const TorchFile& file, const PyValue* value);

// A setting, or `otherwise` if it is missing or of another type.
template <class T>
T value_or(const ArgMap& args, const char* name, T otherwise) {
  const auto found = args.find(name);
  if (found == args.end()) return otherwise;
  if (const T* value = std::get_if<T>(&found->second)) return *value;
  return otherwise;
}

// True if the settings have a gated activation, which doubles the rows of fc1: --swiglu of
// Megatron-LM or --glu-activation of BigScience.
bool is_gated(const ArgMap& args);

}  // namespace megatron
