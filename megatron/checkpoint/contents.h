#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/checkpoint/region.h"
#include "megatron/checkpoint/state.h"
#include "megatron/core/arg_map.h"
#include "megatron/formats/file_elements.h"

// What a checkpoint holds, whoever wrote it: tensors as rectangles that lie in files, numbers and
// settings. A format is read by making this, and written from it, so that any format can become
// any other, and any layout of ranks any other.
namespace megatron {

// The section of the model's weights; the others are kinds of optimizer state.
inline constexpr const char* kWeightsSection = "weights";
inline constexpr const char* kMainParamSection = "main_param";

// A rectangle of a tensor, and a way to its elements: row-major, of the rectangle's shape.
struct TensorPiece {
  Region region;
  std::function<FileElements()> read;
};

struct StoredTensor {
  Shape shape;
  DType dtype = DType::kFloat32;
  std::vector<TensorPiece> pieces;  // do not overlap; what none covers is zero
};
using StoredSection = std::map<std::string, StoredTensor>;

struct CheckpointContents {
  std::filesystem::path directory;
  int64_t iteration = 0;
  bool is_release = false;  // weights alone: a run that loads them begins at iteration 0
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  std::map<std::string, StoredSection> sections;
  std::map<std::string, ArgMap> scalars;  // as of CheckpointState
  ArgMap args;                            // the settings of the run that saved it

  bool has_optimizer() const { return sections.size() > 1; }
};

// The part of a tensor, on the CPU and in its own dtype. REQUIRES: the region lies in it.
Tensor read_region(const StoredTensor& tensor, const Region& region);
Tensor read_whole(const StoredTensor& tensor);
// The same without a copy where the elements lie together already.
FileElements elements_of(const StoredTensor& tensor, const Region& region);
FileElements whole_elements(const StoredTensor& tensor);

// Fills the targets, in place, from a section. Targets may be any rectangles; a floating-point
// target of another dtype gets rounded values. First checks all: throws FormatError that lists
// every tensor that is missing, is not wanted, or has another shape, with the remedy; is_part as in
// LoadOptions.
void read_section(const CheckpointContents& contents, std::string_view section,
                  std::span<const CheckpointTensor> targets, bool is_part = false);

struct LoadOptions {
  bool optimizer = true;  // read the kinds of state that CheckpointState::optimizer has
  // The targets are a part of what is wanted: other ranks want the rest, so that a tensor that
  // nobody here wants is no mistake.
  bool is_part = false;
};

// Fills the tensors of `state`, in place, and replaces its counters, scalars and args. Reports
// differences of all sections together. Where the contents say which rows of the vocabulary are
// padding, the state may have more or fewer of them.
void load_checkpoint(const CheckpointContents& contents, CheckpointState& state,
                     const LoadOptions& options = {});

// A state of a run as the contents of a checkpoint; shares its tensors.
CheckpointContents contents_of(const CheckpointState& state);

// The same tensors, each as one piece that is put together when it is read.
void join_pieces(CheckpointContents& contents);

// Floating-point tensors of a section in another dtype.
void convert_section(CheckpointContents& contents, std::string_view section, DType dtype);

// The table of the word embedding. Throws FormatError when there is none.
const StoredTensor& vocabulary_of(const CheckpointContents& contents);

// Is the first axis of the tensor the padded vocabulary?
bool has_vocabulary_rows(std::string_view name);

// Gives every tensor over the vocabulary `rows` rows. Rows beyond are left out. New rows of weights
// are copies of the last one, new rows of the optimizer's moments are zero.
// Compat: Megatron-LM's and transformers' converters pad with copies. Megatron-LM computes with
// padding rows, and the logits of zero rows may be far above all others.
void resize_vocabulary(CheckpointContents& contents, int64_t rows);

// How many rows of the vocabulary the stored settings say are not padding; 0 where they do not say,
// and all rows count.
int64_t true_vocab_size(const ArgMap& args);

// Gives the vocabulary `rows` rows, of which those that are padding are made anew where
// true_vocab_size() knows them.
void pad_vocabulary(CheckpointContents& contents, int64_t rows);

// The settings of which a run that continues a checkpoint may not differ, and does: one sentence
// each. Compat: the list of Megatron-LM core_r0.5.0 without the parallel sizes, which may change.
std::vector<std::string> contradictions(const ArgMap& saved, const ArgMap& current);

}  // namespace megatron
