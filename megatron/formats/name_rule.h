#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/formats/sharded.h"
#include "megatron/tensor/tensor.h"

// Tables that map another system's parameter names and layouts to ours. A format is a table of
// rules; the functions here read and write by any such table.
namespace megatron {

// The layout of their elements. Rows are along our first axis, so weights [out, in] and biases
// [out] are treated alike; n heads of d channels, g query groups, m = n / g heads per group.
enum class Layout {
  kSame,
  kTranspose,  // theirs is [in, out]
  kPadVocab,   // only ours has padding rows after the vocabulary; zero when read
  // Ours has, for each group, its m query heads, key and value (Megatron-LM's current order).
  kQkvThirds,           // theirs: all queries, then all keys, then all values
  kQkvThirdsTranspose,  // the same, as columns of [in, out]: GPT-2's c_attn
  kQkvSplit,            // theirs: three tensors for queries, keys, values
  kKvSplit,             // ours: for each head its key, then its value; theirs: two tensors
  kGateUp,              // ours: rows of the gate, then of the up projection; theirs: two tensors
  // Ours is [experts, rows, columns]; theirs has tensors of each expert, with "{e}" in the name.
  kExperts,       // one of [rows, columns]
  kExpertGateUp,  // two, as kGateUp
  // Theirs is one tensor of all experts, [experts, columns, rows]; a bias is [experts, rows]
  // (GPT-OSS).
  kExpertColumns,
  kExpertColumnPairs,  // ours as kGateUp, theirs in turns: a row of the gate, a row of up
};

// One mapping. "{i}" in a name stands for a layer number; in their names "{i-1}" stands for the
// number before it, "{last}" for that of the last layer, and "{e}" for an expert. The first
// matching rule applies.
struct NameRule {
  std::string_view ours;
  std::array<std::string_view, 3> theirs;  // those of the layout, then empty
  Layout layout = Layout::kSame;
};

// A tensor that a file has besides the one it must be equal to: a tied output layer, say.
struct TensorCopy {
  std::string ours;    // our name of the other
  std::string theirs;  // the name of the copy
  bool is_written = false;
};

// A format.
struct NameTable {
  std::vector<NameRule> rules;
  // A prefix of all names that some files omit; reads both forms, writes the full one.
  std::string_view optional_prefix;
  // Their tensors without parameters (masks, computed tables); "{i}" as above.
  std::vector<std::string_view> ignored;
  int64_t num_layers = 0;  // for "{last}"
  // Suffixes of their names and those in older files: {"LayerNorm.weight", "LayerNorm.gamma"}.
  std::vector<std::pair<std::string_view, std::string_view>> older_ends = {};
  // Our layers that are theirs behind the last: the beginning of their names, "mtp.layers.{i}.",
  // and a part after it that theirs do not have. The rules of decoder.layers.{num_layers + i}.
  // apply.
  std::pair<std::string_view, std::string_view> further_layers = {};
  std::vector<TensorCopy> copies = {};
};

// Sizes for the layouts.
struct LayoutSizes {
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;
  int64_t kv_channels = 0;
  int64_t vocab_size = 0;  // their rows, without padding
};

// A rule applied to one of our tensors.
struct TensorMapping {
  TensorSpec ours;
  std::vector<std::string> theirs;
  Layout layout = Layout::kSame;
};

// The rule of each of our tensors, in their order. Throws Unsupported, which lists all tensors
// without a rule.
std::vector<TensorMapping> mapped(const NameTable& table, std::span<const TensorSpec> ours);

// The shapes of their tensors. Throws ShapeError if the sizes do not fit ours.
std::vector<Shape> their_shapes(const TensorMapping& tensor, const LayoutSizes& sizes);

// One of our tensors from all of theirs, which have their_shapes(), in the widest of their dtypes.
// The pieces cover it except for rows of padding. A piece whose elements are contiguous in theirs
// is read in place; others are assembled on demand, each on its own, so that a rank rearranges only
// its part.
StoredTensor from_theirs(const TensorMapping& tensor, std::vector<StoredTensor> theirs,
                         const LayoutSizes& sizes);
// Their tensor number `part` from ours, in the dtype of ours. The exact inverse of from_theirs,
// except for padding rows.
Tensor to_theirs(const TensorMapping& tensor, size_t part, ConstView ours,
                 const LayoutSizes& sizes);

// All of our tensors, in the dtypes of the file. Throws FormatError, which lists every tensor that
// is missing, unexpected or of the wrong shape or dtype. The first read of a tensor with a copy
// throws FormatError if they differ.
StoredSection open_mapped(const std::shared_ptr<const ShardedWeights>& file, const NameTable& table,
                          std::span<const TensorSpec> ours, const LayoutSizes& sizes);

// Writes our tensors under their names, like write_sharded().
void save_mapped(const std::filesystem::path& directory, const NameTable& table,
                 std::span<const TensorSpec> ours, const LayoutSizes& sizes,
                 int64_t max_shard_bytes, const TensorSource& source,
                 WeightsFormat format = WeightsFormat::kSafetensors);

}  // namespace megatron
