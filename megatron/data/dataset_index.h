#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "megatron/core/file.h"
#include "megatron/data/token_dtype.h"

namespace megatron {

// The two formats of `<prefix>.idx`, little-endian, for N sequences and D entries of the document
// index. The index starts with 0 and ends with N; document k has the sequences
// [index[k], index[k + 1]).
//
//   MMIDIDX (--dataset-impl mmap)
//   0           9       magic "MMIDIDX\0\0"
//   9           8       version u64 = 1
//   17          1       element type of .bin, u8 (TokenDtype)
//   18          8       N, u64
//   26          8       D, u64
//   34          4N      length of each sequence in tokens, i32
//   34+4N       8N      byte offset of each sequence in .bin, i64
//   34+12N      8D      document index, i64
//   34+12N+8D   N       mode of each sequence, i8 (multimodal datasets only)
//
//   TNTIDX (--dataset-impl cached and lazy, of Megatron-DeepSpeed and older Megatron-LM)
//   0           8       magic "TNTIDX\0\0"
//   8           8       version u64 = 1
//   16          8       element type of .bin, u64
//   24          8       bytes of an element, u64
//   32          8       N, u64
//   40          8       number of lengths, u64; N, as a sequence has one dimension
//   48          8       D, u64
//   56          8(N+1)  where the lengths of each sequence start, i64: 0, 1, ..., N
//   64+8N       8(N+1)  offset of each sequence in .bin in tokens, i64
//   72+16N      8N      length of each sequence in tokens, i64
//   72+24N      8D      document index, i64
enum class IndexFormat { kMmididx, kTntidx };

// The locations of an index's arrays. Checks sizes and offsets of the arrays, not their values.
struct IndexLayout {
  IndexFormat format = IndexFormat::kMmididx;
  TokenDtype dtype = TokenDtype::kInt32;
  int64_t num_sequences = 0;
  int64_t document_index_size = 0;
  int64_t lengths = 0;    // offset; i32 or, in TNTIDX, i64
  int64_t pointers = 0;   // offset; i64
  int64_t documents = 0;  // offset; i64
  int64_t modes = 0;      // offset; 0: none

  int64_t bytes_per_length() const { return format == IndexFormat::kMmididx ? 4 : 8; }
  // The unit of a pointer in bytes: 1, or the size of a token.
  int64_t bytes_per_pointer_unit() const {
    return format == IndexFormat::kMmididx ? 1 : token_bytes(dtype);
  }
};

// Throws FormatError if `bytes`, the contents of the file `path`, are not an index of either
// format, or truncated.
IndexLayout read_index_layout(std::span<const std::byte> bytes, bool multimodal,
                              const std::filesystem::path& path);

// The contents of an index under construction.
struct IndexContents {
  TokenDtype dtype = TokenDtype::kInt32;
  std::vector<int32_t> lengths;
  std::vector<int64_t> document_index{0};
  std::vector<int8_t> modes;  // empty unless multimodal
};

// Writes an index; only MMIDIDX has modes.
void write_index(FileWriter& file, IndexFormat format, const IndexContents& contents);

}  // namespace megatron
