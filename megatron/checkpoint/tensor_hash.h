#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "megatron/checkpoint/state.h"
#include "megatron/comm/group.h"
#include "megatron/core/arg_map.h"
#include "megatron/core/dtype.h"
#include "megatron/core/view.h"
#include "megatron/formats/region.h"
#include "megatron/tensor/hash_sums.h"

// Hashes of a checkpoint's tensors (kernels/hash_term.h). The saving run hashes the elements in
// device memory, and the loading run compares the hashes with those of its own elements, in any
// layout. So they detect errors between the two devices; the checksums of chunks detect only damage
// to files.
namespace megatron {

struct CheckpointContents;

struct TensorHash {
  Shape shape;  // of the elements that count, which are the first of the whole tensor
  DType dtype = DType::kFloat32;
  uint64_t hash = 0;
};
// By section, and by tensor.
using TensorHashes = std::map<std::string, std::map<std::string, TensorHash>>;

// All elements count except the padding rows of the vocabulary, if `args` have the number of the
// others: another run may pad differently.
Shape counted_shape(std::string_view tensor, const Shape& whole, const ArgMap& args);

// Adds the elements of a region of a tensor that count.
void add_region(HashSums& sums, size_t tensor, ConstView elements, const Region& region,
                const Shape& counted, Stream stream);

// Partial hashes of this rank's parts of a state to save. The partial hashes of all ranks add up to
// those of the tensors. Waits for the device.
TensorHashes hashes_of(const CheckpointState& parts);

// Compares what was loaded with the hashes of the contents. `parts` are those that this rank would
// save. Tensors that have no hash, that are not loaded as a whole, or that have another dtype now,
// are not compared. Every rank of `world` calls it. Throws FormatError on every rank, with all
// tensors that differ.
void expect_stored_hashes(const CheckpointContents& contents, const CheckpointState& parts,
                          const comm::Group& world);

}  // namespace megatron
