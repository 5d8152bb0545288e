#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/checkpoint/state.h"
#include "megatron/checkpoint/tensor_hash.h"
#include "megatron/core/arg_map.h"
#include "megatron/formats/stored_tensor.h"

// The contents of a checkpoint of any format: tensors as rectangles in files, numbers and settings.
// Each format is read into this and written from it, so any format can be converted to any other,
// and so can any layout of ranks.
namespace megatron {

// The section of the model's weights; other sections are kinds of optimizer state.
inline constexpr const char* kWeightsSection = "weights";
inline constexpr const char* kMainParamSection = "main_param";

struct CheckpointContents {
  std::filesystem::path directory;
  int64_t iteration = 0;
  bool is_release = false;  // only weights: a run that loads them starts at iteration 0
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  std::map<std::string, StoredSection> sections;
  std::map<std::string, ArgMap> scalars;  // see CheckpointState
  ArgMap args;                            // the settings of the saving run
  // As the saving run had them; of a native checkpoint alone. A section or tensor may be missing.
  TensorHashes hashes;
  // The reason why stored optimizer state is not among the sections; empty if it is, or if there is
  // none.
  std::string optimizer_problem;

  bool has_optimizer() const { return sections.size() > 1; }
};

// Fills the targets in place from a section. Targets may be any rectangles; a floating-point target
// of another dtype gets rounded values. First checks all: throws FormatError, which lists every
// tensor that is missing, unexpected, or of another shape, with the remedy. For is_part see
// LoadOptions.
void read_section(const CheckpointContents& contents, std::string_view section,
                  std::span<const CheckpointTensor> targets, bool is_part = false);

struct LoadOptions {
  bool optimizer = true;  // read the kinds of state in CheckpointState::optimizer
  // This rank loads a part; other ranks load the rest, so tensors that are extra here are not an
  // error.
  bool is_part = false;
};

// Fills the tensors of `state` in place, and replaces its counters, scalars and args. Reports
// differences of all sections together. If the contents know which rows of the vocabulary are
// padding, the state may have more or fewer of them.
void load_checkpoint(const CheckpointContents& contents, CheckpointState& state,
                     const LoadOptions& options = {});

// The state of a run as the contents of a checkpoint; shares its tensors.
CheckpointContents contents_of(const CheckpointState& state);

// Merges the pieces of every tensor into one, which is assembled when it is read.
void join_pieces(CheckpointContents& contents);

// Converts floating-point tensors of a section to another dtype.
void convert_section(CheckpointContents& contents, std::string_view section, DType dtype);

// The table of the word embedding. Throws FormatError if there is none.
const StoredTensor& vocabulary_of(const CheckpointContents& contents);

// True if the first axis of the tensor is the padded vocabulary.
bool has_vocabulary_rows(std::string_view name);

// Resizes every tensor over the vocabulary to `rows` rows. Drops rows beyond. New rows of weights
// are copies of the last row, new rows of the optimizer's moments are zero.
// Compat: Megatron-LM's and transformers' converters pad with copies. Megatron-LM computes with
// padding rows, and the logits of zero rows may be far above all others.
void resize_vocabulary(CheckpointContents& contents, int64_t rows);

// The number of vocabulary rows that are not padding, from the stored settings; 0 if unknown: then
// all rows count.
int64_t true_vocab_size(const ArgMap& args);

// Resizes the vocabulary to `rows` rows. Replaces old padding rows if true_vocab_size() is known.
void pad_vocabulary(CheckpointContents& contents, int64_t rows);

}  // namespace megatron
