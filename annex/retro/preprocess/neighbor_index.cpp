#include "annex/retro/preprocess/neighbor_index.h"

#include <faiss/IVFlib.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVF.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/impl/FaissException.h>
#include <faiss/index_factory.h>
#include <faiss/index_io.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/read_in_child.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace megatron::retro {
namespace {

// FAISS's message, without the position in its sources.
std::string reason_of(const faiss::FaissException& error) {
  const std::string text = error.what();
  const size_t colon = text.rfind("failed: ");
  return colon == std::string::npos ? text : text.substr(colon + 8);
}

std::filesystem::path checksum_file(const std::filesystem::path& path) {
  return path.string() + ".crc32c";
}

std::string checksum_of(const std::filesystem::path& path) {
  const MappedFile file(path);
  return fmt::format("crc32c {:08x} {}\n", crc32c(file.bytes()), file.bytes().size());
}

std::unique_ptr<faiss::Index> read_with_faiss(const std::filesystem::path& path) {
  try {
    return std::unique_ptr<faiss::Index>(faiss::read_index(path.c_str()));
  } catch (const faiss::FaissException& error) {
    throw FormatError(
        fmt::format("{}: FAISS cannot read it ({}); delete it, so that it is made again",
                    path.string(), reason_of(error)));
  }
}

// True if all edges in the graph of an index, if it has one, stay inside the graph: a few searches
// would not follow all edges.
bool has_sound_graph(const faiss::Index* index) {
  const auto* const graph = dynamic_cast<const faiss::IndexHNSW*>(index);
  if (graph == nullptr) return true;
  const faiss::HNSW& hnsw = graph->hnsw;
  const auto count = static_cast<size_t>(graph->ntotal);
  const auto& cumulated = hnsw.cum_nneighbor_per_level;
  if (graph->storage == nullptr || graph->storage->ntotal != graph->ntotal ||
      graph->storage->d != graph->d || hnsw.levels.size() != count ||
      hnsw.offsets.size() != count + 1 || !std::is_sorted(cumulated.begin(), cumulated.end()) ||
      hnsw.offsets.back() > hnsw.neighbors.size() || hnsw.max_level < -1 ||
      hnsw.max_level + 1 >= static_cast<int64_t>(cumulated.size())) {
    return false;
  }
  const auto is_place = [&](int64_t place) { return place >= 0 && place < graph->ntotal; };
  if (count > 0 && (!is_place(hnsw.entry_point) ||
                    hnsw.levels[static_cast<size_t>(hnsw.entry_point)] <= hnsw.max_level)) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    const int level = hnsw.levels[i];
    if (level < 0 || level >= static_cast<int64_t>(cumulated.size()) || cumulated[0] != 0 ||
        hnsw.offsets[i] > hnsw.offsets[i + 1] ||
        hnsw.offsets[i + 1] - hnsw.offsets[i] <
            static_cast<size_t>(cumulated[static_cast<size_t>(level)])) {
      return false;
    }
    for (int layer = 0; layer < level; ++layer) {
      const auto begin = static_cast<size_t>(cumulated[static_cast<size_t>(layer)]);
      const auto end = static_cast<size_t>(cumulated[static_cast<size_t>(layer) + 1]);
      for (size_t k = hnsw.offsets[i] + begin; k < hnsw.offsets[i] + end; ++k) {
        const int64_t neighbor = hnsw.neighbors[k];
        if (neighbor == -1) continue;
        if (!is_place(neighbor) || hnsw.levels[static_cast<size_t>(neighbor)] <= layer) {
          return false;
        }
      }
    }
  }
  return true;
}

// For a child process: reads the index and searches some vectors, with one thread.
std::string try_out(const std::filesystem::path& path) {
#if defined(_OPENMP)
  omp_set_num_threads(1);
#endif
  constexpr int64_t kQueries = 8;
  constexpr int64_t kNearest = 10;
  constexpr int64_t kMaxNumbers = int64_t{1} << 24;
  const std::unique_ptr<faiss::Index> index = read_with_faiss(path);
  if (index->d <= 0 || index->d > kMaxNumbers || index->ntotal < 0) {
    throw FormatError(fmt::format(
        "{}: is an index of {} vectors of {} numbers; delete it, so that it is made again",
        path.string(), index->ntotal, index->d));
  }
  faiss::IndexIVF* const lists = faiss::ivflib::try_extract_index_ivf(index.get());
  if (!has_sound_graph(index.get()) ||
      (lists != nullptr && (!has_sound_graph(lists->quantizer) || lists->d <= 0))) {
    throw FormatError(
        fmt::format("{}: has a graph with steps to vectors that do not exist; delete it, so that "
                    "it is made again",
                    path.string()));
  }
  if (lists != nullptr) lists->nprobe = std::min<size_t>(lists->nlist, 64);
  std::vector<float> queries(static_cast<size_t>(kQueries * index->d));
  for (size_t i = 0; i < queries.size(); ++i) {
    queries[i] = static_cast<float>(i % 7) * static_cast<float>(i / static_cast<size_t>(index->d));
  }
  std::vector<float> distances(static_cast<size_t>(kQueries * kNearest));
  std::vector<faiss::Index::idx_t> ids(distances.size());
  index->search(kQueries, queries.data(), kNearest, distances.data(), ids.data());
  return {};
}

void expect_sound(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(checksum_file(path), ignored)) {
    read_in_child(path, "FAISS", [&] { return try_out(path); });
    return;
  }
  if (read_text(checksum_file(path)) == checksum_of(path)) return;
  throw FormatError(fmt::format(
      "{}: is damaged, as it has not the checksum in {}; delete both, so that they are made again",
      path.string(), checksum_file(path).string()));
}

void set_graph_effort(faiss::Index* index, int64_t ef_search) {
  if (auto* const graph = dynamic_cast<faiss::IndexHNSW*>(index)) {
    graph->hnsw.efSearch = static_cast<int>(ef_search);
  }
}

}  // namespace

struct NeighborIndex::State {
  std::unique_ptr<faiss::Index> index;
  faiss::IndexIVF* lists = nullptr;  // inside index; null: it has none

  explicit State(std::unique_ptr<faiss::Index> owned)
      : index(std::move(owned)), lists(faiss::ivflib::try_extract_index_ivf(index.get())) {}
};

NeighborIndex::NeighborIndex(std::unique_ptr<State> state) : state_(std::move(state)) {}
NeighborIndex::~NeighborIndex() = default;
NeighborIndex::NeighborIndex(NeighborIndex&&) noexcept = default;
NeighborIndex& NeighborIndex::operator=(NeighborIndex&&) noexcept = default;

NeighborIndex NeighborIndex::trained(const std::string& description, int64_t dimension,
                                     std::span<const float> vectors) {
  try {
    NeighborIndex made(std::make_unique<State>(std::unique_ptr<faiss::Index>(
        faiss::index_factory(static_cast<int>(dimension), description.c_str()))));
    made.state_->index->train(made.rows_of(vectors), vectors.data());
    return made;
  } catch (const faiss::FaissException& error) {
    throw ConfigError(fmt::format(
        "--retro-index-str {}: FAISS cannot train it with {} vectors of {} numbers ({}); give "
        "another one, or more chunks with --retro-index-ntrain",
        description, static_cast<int64_t>(vectors.size()) / dimension, dimension,
        reason_of(error)));
  }
}

NeighborIndex::NeighborIndex(const std::filesystem::path& path) {
  expect_sound(path);
  state_ = std::make_unique<State>(read_with_faiss(path));
}

void NeighborIndex::write(const std::filesystem::path& path) const {
  std::filesystem::path unfinished = path;
  unfinished += ".tmp";
  std::error_code error;
  std::string checksum;
  try {
    faiss::write_index(state_->index.get(), unfinished.c_str());
    checksum = checksum_of(unfinished);
    std::filesystem::remove(checksum_file(path), error);  // never one of another index
    std::filesystem::rename(unfinished, path, error);
  } catch (const faiss::FaissException& failure) {
    std::filesystem::remove(unfinished, error);
    throw IoError(
        fmt::format("{}: FAISS cannot write the index: {}", path.string(), reason_of(failure)));
  }
  if (error) {
    throw IoError(
        fmt::format("{}: cannot be renamed into place: {}", path.string(), error.message()));
  }
  write_text_atomically(checksum_file(path), checksum);
}

int64_t NeighborIndex::dimension() const { return state_->index->d; }
int64_t NeighborIndex::size() const { return state_->index->ntotal; }

int64_t NeighborIndex::rows_of(std::span<const float> vectors) const {
  const auto size = static_cast<int64_t>(vectors.size());
  invariant(size % dimension() == 0, "vectors have the index's dimension");
  return size / dimension();
}

void NeighborIndex::add(std::span<const float> vectors, int64_t first_id) {
  const int64_t count = rows_of(vectors);
  if (state_->lists != nullptr) {
    std::vector<faiss::Index::idx_t> ids(static_cast<size_t>(count));
    std::iota(ids.begin(), ids.end(), first_id);
    state_->index->add_with_ids(count, vectors.data(), ids.data());
    return;
  }
  if (first_id != size()) {
    throw ConfigError(
        "--retro-index-add-load-fraction leaves gaps between the numbers of chunks, which an index "
        "without IVF cannot have; use 1, or an IVF in --retro-index-str");
  }
  state_->index->add(count, vectors.data());
}

bool NeighborIndex::has_codes() const {
  // A wrapper other than a transform of the vectors keeps more than the codes of its lists.
  return state_->lists != nullptr && state_->index->metric_type == state_->lists->metric_type &&
         (state_->index.get() == state_->lists ||
          dynamic_cast<faiss::IndexPreTransform*>(state_->index.get()) != nullptr);
}

int64_t NeighborIndex::code_size() const {
  return static_cast<int64_t>(state_->index->sa_code_size());
}

std::vector<uint8_t> NeighborIndex::codes_of(std::span<const float> vectors) const {
  const int64_t count = rows_of(vectors);
  std::vector<uint8_t> codes(static_cast<size_t>(count * code_size()));
  state_->index->sa_encode(count, vectors.data(), codes.data());
  return codes;
}

void NeighborIndex::add_codes(std::span<const uint8_t> codes, int64_t first_id) {
  const int64_t count = static_cast<int64_t>(codes.size()) / code_size();
  std::vector<faiss::Index::idx_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first_id);
  state_->lists->add_sa_codes(count, codes.data(), ids.data());
  state_->index->ntotal = state_->lists->ntotal;
}

void NeighborIndex::set_effort(int64_t nprobe, int64_t ef_search) {
  set_graph_effort(state_->index.get(), ef_search);
  if (state_->lists == nullptr) return;
  const auto lists = static_cast<int64_t>(state_->lists->nlist);
  state_->lists->nprobe = static_cast<size_t>(std::min(nprobe, lists));
  set_graph_effort(state_->lists->quantizer, ef_search);
}

std::vector<int64_t> NeighborIndex::search(std::span<const float> queries, int64_t k) const {
  const int64_t count = rows_of(queries);
  std::vector<float> distances(static_cast<size_t>(count * k));
  std::vector<faiss::Index::idx_t> ids(distances.size());
  state_->index->search(count, queries.data(), k, distances.data(), ids.data());
  return {ids.begin(), ids.end()};
}

}  // namespace megatron::retro
