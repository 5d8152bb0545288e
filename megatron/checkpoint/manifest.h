#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/arg_map.h"
#include "megatron/core/dtype.h"
#include "megatron/formats/region.h"

// manifest.json: the content of a checkpoint and its files. docs/formats/native-checkpoint.md has
// the bytes.
namespace megatron {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kManifestSumFile = "manifest.json.sum";
inline constexpr const char* kArgsFile = "args.json";

struct Manifest {
  // A rectangle of a tensor, and its entry in a safetensors file.
  struct Chunk {
    std::string file;
    std::string key;
    Region region;
    uint32_t crc = 0;  // CRC-32C of its elements
  };
  struct Tensor {
    Shape shape;
    DType dtype = DType::kFloat32;
    std::vector<Chunk> chunks;  // tile the tensor
    // See tensor_hash.h; none in files of versions that had none.
    std::optional<uint64_t> hash = std::nullopt;
  };
  struct File {
    int64_t bytes = 0;
    // CRC-32C: of the header of a safetensors file, whose chunks have their own; of all bytes of
    // any other file.
    uint32_t crc = 0;
  };

  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  std::map<std::string, std::map<std::string, Tensor>> sections;
  std::map<std::string, ArgMap> scalars;
  std::map<std::string, File> files;
};

// Writes the manifest and its checksum into a checkpoint's directory. Throws IoError.
void write_manifest(const std::filesystem::path& directory, const Manifest& manifest);

// Reads the manifest; checks its checksum, and that chunks tile every tensor. Throws IoError,
// FormatError, and Unsupported for a newer version of the format.
Manifest read_manifest(const std::filesystem::path& directory);

// The text that write_manifest() writes, and its inverse, for exchange between ranks. Parts need
// not tile their tensors. Throws FormatError.
std::string manifest_text(const Manifest& part);
Manifest parse_manifest_part(std::string_view text);
// Adds the chunks and files of another rank. Throws InternalError if ranks disagree on a tensor.
void merge(Manifest& manifest, const Manifest& part);

// args.json: a flat object.
std::string args_text(const ArgMap& args);
ArgMap parse_args(std::string_view text, const std::filesystem::path& path);

}  // namespace megatron
