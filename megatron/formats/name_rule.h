#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/formats/sharded.h"
#include "megatron/tensor/tensor.h"

// Name-and-layout tables: how the parameters of another system correspond to ours. A format is a
// table of rules; this file reads and writes by any such table.
namespace megatron {

// How their elements are arranged. Rows are of the first axis of ours, so weights [out, in] and
// biases [out] go alike; n heads of d channels, g query groups, m = n / g heads a group.
enum class Layout {
  kSame,
  kTranspose,  // [in, out] there
  kPadVocab,   // rows of padding follow the vocabulary here, not there; zero when read
  // Ours, for each group: its m query heads, its key, its value (Megatron-LM's current order).
  kQkvThirds,           // there all queries, then all keys, then all values
  kQkvThirdsTranspose,  // the same, as columns of [in, out]: GPT-2's c_attn
  kQkvSplit,            // there three tensors: queries, keys, values
  kGateUp,              // ours are the gate's rows, then the up projection's; there two tensors
};

// One correspondence. "{i}" in a name stands for the number of the layer.
struct NameRule {
  std::string_view ours;
  std::array<std::string_view, 3> theirs;  // as many as the layout has, then empty
  Layout layout = Layout::kSame;
};

// A format.
struct NameTable {
  std::span<const NameRule> rules;
  // Some files leave this beginning off all names; both forms are read, the full one is written.
  std::string_view optional_prefix;
  // Theirs that hold nothing to learn (masks, tables that are computed); "{i}" as above.
  std::vector<std::string_view> ignored;
};

// The sizes that layouts depend on.
struct LayoutSizes {
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;
  int64_t kv_channels = 0;
  int64_t vocab_size = 0;  // rows of theirs, without padding
};

// A rule applied to one of our tensors.
struct MappedTensor {
  TensorSpec ours;
  std::vector<std::string> theirs;
  Layout layout = Layout::kSame;
};

// The rule of each of our tensors, in their order. Throws Unsupported naming all that have no rule.
std::vector<MappedTensor> mapped(const NameTable& table, std::span<const TensorSpec> ours);

// The shapes of their tensors. Throws ShapeError when the sizes do not fit ours.
std::vector<Shape> their_shapes(const MappedTensor& tensor, const LayoutSizes& sizes);

// Reads elements of a file, which may be unaligned.
using ElementReader = std::function<FileElements()>;

// A rectangle of one of our tensors, to be read when it is wanted: in place where the elements lie
// together, else made of them.
struct MappedPiece {
  std::vector<int64_t> offset;
  Shape shape;
  ElementReader read;
};
// Ours from all of theirs, which have their_shapes() and the dtype. The pieces cover ours but for
// rows of padding. A tensor whose elements must be moved has several, so that a rank that wants a
// part moves that part alone.
std::vector<MappedPiece> pieces_of(const MappedTensor& tensor, std::vector<ElementReader> theirs,
                                   DType dtype, const LayoutSizes& sizes);
// Number `part` of theirs from ours, in the dtype of ours. The exact inverse of pieces_of, but for
// rows of padding.
Tensor to_theirs(const MappedTensor& tensor, size_t part, ConstView ours, const LayoutSizes& sizes);

// One of our tensors; `ours` has the dtype of the file.
struct MappedSource {
  TensorSpec ours;
  std::vector<MappedPiece> pieces;
};

// All of our tensors, in their order. Throws FormatError that lists every missing, unexpected and
// mis-shaped tensor.
std::vector<MappedSource> open_mapped(const std::shared_ptr<const ShardedWeights>& file,
                                      const NameTable& table, std::span<const TensorSpec> ours,
                                      const LayoutSizes& sizes);

// Writes our tensors under their names, as write_sharded does.
void save_mapped(const std::filesystem::path& directory, const NameTable& table,
                 std::span<const TensorSpec> ours, const LayoutSizes& sizes,
                 int64_t max_shard_bytes, const TensorSource& source,
                 WeightsFormat format = WeightsFormat::kSafetensors);

}  // namespace megatron
