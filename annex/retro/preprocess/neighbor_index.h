#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace megatron::retro {

// An index of FAISS over vectors with numbers: finds the nearest ones of a vector by squared
// Euclidean distance. Searching is thread safe.
//
// Files are those of FAISS, which crashes on damaged ones. So each file has its checksum in a file
// beside it, "<name>.crc32c", and one without, made by another program, is first read and searched
// in a child process (core/read_in_child.h).
class NeighborIndex {
 public:
  // An index without vectors, trained with these [n, dimension]. `description` is that of FAISS's
  // index_factory: "IVF64,Flat", "OPQ32_64,IVF65536_HNSW8,PQ32". Throws ConfigError if there is no
  // such index, or if the vectors are too few.
  static NeighborIndex trained(const std::string& description, int64_t dimension,
                               std::span<const float> vectors);
  // Throws IoError, and FormatError if the file is no index or is damaged.
  explicit NeighborIndex(const std::filesystem::path& path);
  ~NeighborIndex();
  NeighborIndex(NeighborIndex&&) noexcept;
  NeighborIndex& operator=(NeighborIndex&&) noexcept;

  // The file appears when it is complete. Throws IoError.
  void write(const std::filesystem::path& path) const;

  int64_t dimension() const;
  int64_t size() const;
  // Adds vectors [n, dimension] with the numbers first_id, first_id + 1, ... Throws ConfigError if
  // this kind of index numbers its vectors itself, and first_id is not size().
  void add(std::span<const float> vectors, int64_t first_id);

  // True if codes can be computed separately from adding them: by any rank, from the trained index.
  bool has_codes() const;
  // Bytes of one code: the number of its list and the compressed vector.
  int64_t code_size() const;
  std::vector<uint8_t> codes_of(std::span<const float> vectors) const;
  // The same as add(), from codes_of() the vectors. REQUIRES: has_codes().
  void add_codes(std::span<const uint8_t> codes, int64_t first_id);

  // How many lists a search visits, at most all, and how thoroughly it looks for them. An index
  // without lists, or without a graph of them, ignores the number.
  void set_effort(int64_t nprobe, int64_t ef_search);
  // The numbers [n, k] of the nearest vectors of each query, nearest first; -1 if there are fewer.
  std::vector<int64_t> search(std::span<const float> queries, int64_t k) const;

 private:
  struct State;
  explicit NeighborIndex(std::unique_ptr<State> state);
  int64_t rows_of(std::span<const float> vectors) const;

  std::unique_ptr<State> state_;
};

}  // namespace megatron::retro
