#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/state.h"
#include "megatron/formats/safetensors.h"

namespace megatron {

// A checkpoint open for reading. Opening reads the manifest alone; tensors are read on demand, each
// checked against its checksum.
class CheckpointReader {
 public:
  // The directory of one iteration (find_checkpoint). Throws IoError, FormatError, Unsupported.
  explicit CheckpointReader(std::filesystem::path directory);

  const std::filesystem::path& directory() const { return directory_; }
  // Counters, scalars, and the shapes of all tensors.
  const Manifest& manifest() const { return manifest_; }
  // The settings of the run that saved it.
  const ArgMap& args() const { return args_; }
  // Is there any state of the optimizer?
  bool has_optimizer() const { return manifest_.sections.size() > 1; }

  // Fills the targets, in place, from a section: "weights", or a kind of optimizer state. Targets
  // may be any rectangles; a floating-point target of another dtype gets rounded values. First
  // checks all: throws FormatError that lists every tensor that is missing, is not wanted, or has
  // another shape, with the remedy. Throws FormatError naming file, tensor and chunk for damaged
  // bytes; the targets are then partly filled.
  void read(std::string_view section, std::span<const CheckpointTensor> targets);

 private:
  const std::map<std::string, TensorRecord>& records_of(std::string_view section) const;
  const SafetensorsFile& opened(const std::string& file);
  ConstView checked_chunk(const std::string& tensor, const TensorRecord& record,
                          const ChunkRecord& chunk);
  void fill(const std::string& name, const TensorRecord& record, const Region& region,
            const Tensor& target);

  std::filesystem::path directory_;
  Manifest manifest_;
  ArgMap args_;
  std::map<std::string, SafetensorsFile> files_;
};

struct LoadOptions {
  bool optimizer = true;  // read the kinds of state that CheckpointState::optimizer has
};

// Fills the tensors of `state`, in place, and replaces its counters, scalars and args. Reports
// differences of all sections together. As CheckpointReader otherwise.
void load_checkpoint(const std::filesystem::path& iteration_directory, CheckpointState& state,
                     const LoadOptions& options = {});

// The settings of which a run that continues a checkpoint may not differ, and does: one sentence
// each. Compat: the list of Megatron-LM core_r0.5.0 without the parallel sizes, which may change.
std::vector<std::string> contradictions(const ArgMap& saved, const ArgMap& current);

}  // namespace megatron
