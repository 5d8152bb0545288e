#include "megatron/retro/neighbor_index.h"

#include <faiss/IVFlib.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVF.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/impl/FaissException.h>
#include <faiss/index_factory.h>
#include <faiss/index_io.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

#include "megatron/core/error.h"

namespace megatron::retro {
namespace {

// What FAISS says, without the place in its sources.
std::string reason_of(const faiss::FaissException& error) {
  const std::string text = error.what();
  const size_t colon = text.rfind("failed: ");
  return colon == std::string::npos ? text : text.substr(colon + 8);
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
  try {
    state_ =
        std::make_unique<State>(std::unique_ptr<faiss::Index>(faiss::read_index(path.c_str())));
  } catch (const faiss::FaissException& error) {
    throw FormatError(
        fmt::format("{}: FAISS cannot read it ({}); delete it, so that it is made again",
                    path.string(), reason_of(error)));
  }
}

void NeighborIndex::write(const std::filesystem::path& path) const {
  std::filesystem::path unfinished = path;
  unfinished += ".tmp";
  std::error_code error;
  try {
    faiss::write_index(state_->index.get(), unfinished.c_str());
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
