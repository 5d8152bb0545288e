#include "megatron/interchange/megatron/dist_buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/optimizer.h"
#include "megatron/interchange/megatron/rank_shard.h"
#include "megatron/interchange/megatron/shard_parts.h"
#include "megatron/interchange/megatron/writer.h"

namespace megatron {
namespace {

constexpr std::string_view kBuffers = "optimizer.distributed.dp_group_idx_";
constexpr std::string_view kOptimizerChain =
    "chained_";                     // and the number of an optimizer, before kBuffers
constexpr int64_t kAlignment = 64;  // of parameters in a buffer, in elements

constexpr std::pair<std::string_view, const char*> kBucketKinds[] = {
    {"param", kMainParamSection}, {"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}};

// optimizer.distributed.dp_group_idx_{rank}.gbuf_idx_{chunk}.dtype_{...}.bucket_idx_{bucket}.{kind}
// behind chained_{chain}. where experts have an optimizer of their own.
struct BucketName {
  int64_t chain = 0;  // 1: of experts
  int64_t rank = 0;   // tensor- and pipeline-parallel; of experts: see expert_rank()
  int64_t chunk = 0;  // of the model
  int64_t bucket = 0;
  std::string_view kind;
};

// Removes the prefix, and the number after it, from the text.
std::optional<int64_t> number_after(std::string_view prefix, std::string_view& text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  return number;
}

std::optional<BucketName> bucket_name(std::string_view name) {
  const auto chain = number_after(kOptimizerChain, name);
  if (chain) name.remove_prefix(std::min<size_t>(1, name.size()));  // the dot
  const auto rank = number_after(kBuffers, name);
  const auto chunk = rank ? number_after(".gbuf_idx_", name) : std::nullopt;
  if (!chunk || !name.starts_with(".dtype_")) return std::nullopt;
  name.remove_prefix(std::min(name.find(".bucket_idx_"), name.size()));
  const auto bucket = number_after(".bucket_idx_", name);
  if (!bucket || !name.starts_with('.')) return std::nullopt;
  return BucketName{chain.value_or(0), *rank, *chunk, *bucket, name.substr(1)};
}

struct Bucket {
  std::string name;
  const TorchDistIndex::Tensor* tensor = nullptr;
  std::vector<const TorchDistIndex::Piece*> pieces;  // by offset
};

// The part of a bucket that is a parameter.
struct Place {
  size_t bucket = 0;
  int64_t begin = 0;
};

int64_t aligned(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

// Positions of parameters in buckets of these sizes: in reverse order, each in the first bucket
// with room. A bucket ends with its last parameter, or with the padding after it. None if they do
// not fit.
std::optional<std::vector<Place>> places_of(const RankShard::Chunk& parameters,
                                            const std::vector<Bucket>& buckets) {
  std::vector<Place> places(parameters.size());
  const auto is_full = [&](size_t bucket, int64_t end) {
    const int64_t size = buckets[bucket].tensor->shape[0];
    return size == end || size == aligned(end);
  };
  size_t bucket = 0;
  int64_t end = 0;
  for (size_t i = parameters.size(); i-- > 0;) {
    const int64_t numel = parameters[i].shape.numel();
    if (end > 0 && is_full(bucket, end)) {
      ++bucket;
      end = 0;
    }
    if (bucket == buckets.size()) return std::nullopt;
    places[i] = {bucket, aligned(end)};
    end = places[i].begin + numel;
    if (end > buckets[bucket].tensor->shape[0]) return std::nullopt;
  }
  if (bucket + 1 != buckets.size() || !is_full(bucket, end)) return std::nullopt;
  return places;
}

// The pieces that are elements [begin, end) of a bucket; none if others overlap its ends.
std::optional<std::vector<const TorchDistIndex::Piece*>> pieces_within(const Bucket& bucket,
                                                                       int64_t begin, int64_t end) {
  std::vector<const TorchDistIndex::Piece*> found;
  const auto is_before = [](const TorchDistIndex::Piece* piece, int64_t at) {
    return piece->region.offset[0] < at;
  };
  auto piece = std::ranges::lower_bound(
      bucket.pieces, begin, {},
      [](const TorchDistIndex::Piece* one) { return one->region.offset[0]; });
  int64_t at = begin;
  for (; piece != bucket.pieces.end() && is_before(*piece, end); ++piece) {
    if ((*piece)->region.offset[0] != at) return std::nullopt;
    at += (*piece)->region.shape[0];
    found.push_back(*piece);
  }
  if (at != end) return std::nullopt;
  return found;
}

class BucketReader {
 public:
  BucketReader(const std::shared_ptr<const DistCheckpoint>& checkpoint,
               CheckpointContents& contents)
      : checkpoint_(checkpoint), contents_(contents) {}

  std::string read();

 private:
  std::string collect_buckets();
  std::string add_state(const MegatronLayout& layout);
  std::string add_chunk(const RankShard& shard, size_t chunk);
  // The buckets of a rank, its number in the optimizer `chain`, that hold these parameters.
  std::string add_parameters(int64_t chain, int64_t rank, size_t chunk,
                             const RankShard::Chunk& parameters);
  void add_parameter(const RankParameter& parameter, const char* section, const Bucket& bucket,
                     std::vector<const TorchDistIndex::Piece*> pieces);
  std::string difference_from_weights() const;
  void read_numbers();
  void drop_state() {
    for (const auto& [theirs, ours] : kBucketKinds) contents_.sections.erase(ours);
  }

  const std::shared_ptr<const DistCheckpoint>& checkpoint_;
  CheckpointContents& contents_;
  int64_t tensor_ranks_ = 1;
  int64_t num_experts_ = 0;
  int64_t expert_ranks_ = 1;  // with other experts each
  int64_t share_ranks_ = 1;   // that share an expert
  bool is_grouped_ = false;   // the same matrix of all experts, then the next one
  // By chain, rank, chunk and kind.
  std::map<std::tuple<int64_t, int64_t, int64_t, std::string_view>, std::vector<Bucket>> buckets_;
};

std::string BucketReader::collect_buckets() {
  std::map<std::tuple<int64_t, int64_t, int64_t, std::string_view>, std::map<int64_t, Bucket>>
      found;
  for (const auto& [name, tensor] : checkpoint_->files().index().tensors) {
    const auto parsed = bucket_name(name);
    if (!parsed) continue;
    if (tensor.shape.rank() != 1 || !tensor.dtype)
      return fmt::format("{} is not a flat buffer", name);
    Bucket bucket{name, &tensor, {}};
    for (const TorchDistIndex::Piece& piece : tensor.pieces) bucket.pieces.push_back(&piece);
    std::ranges::sort(bucket.pieces, {},
                      [](const TorchDistIndex::Piece* piece) { return piece->region.offset[0]; });
    auto& buckets = found[{parsed->chain, parsed->rank, parsed->chunk, parsed->kind}];
    if (!buckets.emplace(parsed->bucket, std::move(bucket)).second) {
      return fmt::format("{} has buffers of several types", name);
    }
  }
  for (auto& [key, buckets] : found) {
    for (auto& [number, bucket] : buckets) buckets_[key].push_back(std::move(bucket));
  }
  return "";
}

std::string BucketReader::read() {
  std::string problem = collect_buckets();
  if (!problem.empty()) return problem;
  const ArgMap& args = contents_.args;
  MegatronLayout layout;
  layout.tensor_model_parallel_size = value_or<int64_t>(args, "tensor_model_parallel_size", 1);
  layout.pipeline_model_parallel_size = value_or<int64_t>(args, "pipeline_model_parallel_size", 1);
  layout.virtual_pipeline_model_parallel_size =
      value_or<int64_t>(args, "virtual_pipeline_model_parallel_size", 1);
  tensor_ranks_ = layout.tensor_model_parallel_size;
  num_experts_ = value_or<int64_t>(args, "num_experts", 0);
  expert_ranks_ = value_or<int64_t>(args, "expert_model_parallel_size", 1);
  share_ranks_ = value_or<int64_t>(args, "expert_tensor_parallel_size", tensor_ranks_);
  if (num_experts_ > 0 &&
      (expert_ranks_ < 1 || share_ranks_ < 1 || num_experts_ % expert_ranks_ != 0)) {
    return "the stored numbers of experts and ranks do not fit";
  }
  // The two kinds of layers register parameters in other orders; their tensors have the same names.
  const bool is_local = value_or<std::string>(args, "transformer_impl", "") == "local";
  const MegatronNaming usual = is_local ? MegatronNaming::kCore : MegatronNaming::kCoreFused;
  const MegatronNaming other = is_local ? MegatronNaming::kCoreFused : MegatronNaming::kCore;
  for (const MegatronNaming naming : {usual, other}) {
    layout.naming = naming;
    is_grouped_ = naming == MegatronNaming::kCoreFused;
    std::string found = add_state(layout);
    if (found.empty()) found = difference_from_weights();
    if (found.empty()) {
      read_numbers();
      return "";
    }
    drop_state();
    if (problem.empty()) problem = found;
  }
  return problem;
}

std::string BucketReader::add_state(const MegatronLayout& layout) {
  if (layout.tensor_model_parallel_size < 1 || layout.pipeline_model_parallel_size < 1 ||
      layout.virtual_pipeline_model_parallel_size < 1) {
    return "the stored numbers of ranks are not positive";
  }
  const std::vector<std::string> found = problems(contents_, layout);
  if (!found.empty()) return found.front();
  for (int64_t pipeline = 0; pipeline < layout.pipeline_model_parallel_size; ++pipeline) {
    for (int64_t tensor = 0; tensor < layout.tensor_model_parallel_size; ++tensor) {
      const RankShard shard(contents_, layout, tensor, pipeline, false);
      for (size_t chunk = 0; chunk < shard.chunks().size(); ++chunk) {
        std::string problem = add_chunk(shard, chunk);
        if (!problem.empty()) return problem;
      }
    }
  }
  return "";
}

std::string BucketReader::add_chunk(const RankShard& shard, size_t chunk) {
  // Compat: experts have an optimizer of their own unless their ranks are those of dense layers.
  const bool has_own = num_experts_ > 0 && (expert_ranks_ > 1 || share_ranks_ != tensor_ranks_);
  RankShard::Chunk dense;
  RankShard::Chunk experts;
  RankShard::Chunk together;  // of the experts that follow each other in `dense`
  const auto put_experts = [&] {
    const RankShard::ExpertPlace place = {.share = shard.tensor(), .share_ranks = share_ranks_};
    for (RankParameter& one : shard.experts_of(together, place, is_grouped_)) {
      dense.push_back(std::move(one));
    }
    together.clear();
  };
  for (const RankParameter& parameter : shard.trained(chunk)) {
    if (!parameter.is_expert()) {
      put_experts();
      dense.push_back(parameter);
    } else {
      (has_own ? experts : together).push_back(parameter);
    }
  }
  put_experts();
  const int64_t rank = shard.pipeline() * tensor_ranks_ + shard.tensor();
  std::string problem = add_parameters(0, rank, chunk, dense);
  if (!problem.empty() || !has_own || shard.tensor() > 0 || experts.empty()) return problem;
  for (int64_t expert = 0; expert < expert_ranks_; ++expert) {
    for (int64_t share = 0; share < share_ranks_; ++share) {
      const int64_t own = share + share_ranks_ * (expert + expert_ranks_ * shard.pipeline());
      const RankShard::ExpertPlace place = {.expert = expert,
                                            .expert_ranks = expert_ranks_,
                                            .share = share,
                                            .share_ranks = share_ranks_};
      problem = add_parameters(1, own, chunk, shard.experts_of(experts, place, is_grouped_));
      if (!problem.empty()) return problem;
    }
  }
  return "";
}

std::string BucketReader::add_parameters(int64_t chain, int64_t rank, size_t chunk,
                                         const RankShard::Chunk& parameters) {
  for (const auto& [kind, section] : kBucketKinds) {
    const auto found = buckets_.find({chain, rank, static_cast<int64_t>(chunk), kind});
    const std::string what = fmt::format(
        "{}{}{}.gbuf_idx_{} of {}", chain > 0 ? fmt::format("{}{}.", kOptimizerChain, chain) : "",
        kBuffers, rank, chunk, kind);
    if (found == buckets_.end()) return fmt::format("{} is not there", what);
    const std::vector<Bucket>& buckets = found->second;
    const auto places = places_of(parameters, buckets);
    if (!places) return fmt::format("{} does not have the sizes of the model's parameters", what);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Place& place = (*places)[i];
      const int64_t end = place.begin + parameters[i].shape.numel();
      auto pieces = pieces_within(buckets[place.bucket], place.begin, end);
      if (!pieces) return fmt::format("{} has no piece that is {}", what, parameters[i].ours);
      add_parameter(parameters[i], section, buckets[place.bucket], std::move(*pieces));
    }
  }
  return "";
}

void BucketReader::add_parameter(const RankParameter& parameter, const char* section,
                                 const Bucket& bucket,
                                 std::vector<const TorchDistIndex::Piece*> pieces) {
  const Shape& whole = contents_.sections.at(kWeightsSection).at(parameter.ours).shape;
  const DType dtype = *bucket.tensor->dtype;
  StoredTensor& stored = contents_.sections[section][parameter.ours];
  const std::vector<ShardPart> parts = shard_parts(parameter.info.sharding, whole);
  const bool is_copy = std::ranges::any_of(stored.pieces, [&](const TensorPiece& piece) {
    return intersects(piece.region, parts[0].region);
  });
  if (is_copy) return;  // tied, or the same on every tensor-parallel rank
  stored.shape = whole;
  stored.dtype = dtype;
  const auto read = [checkpoint = checkpoint_, name = bucket.name, tensor = bucket.tensor,
                     pieces = std::move(pieces), shape = parameter.shape, dtype] {
    if (pieces.size() == 1) {
      FileElements elements = checkpoint->files().elements(name, *tensor, *pieces[0]);
      elements.view.shape = shape;
      return elements;
    }
    Tensor y(shape, dtype, Stream{});
    auto* to = static_cast<std::byte*>(y.view().data);
    for (const TorchDistIndex::Piece* piece : pieces) {
      const FileElements elements = checkpoint->files().elements(name, *tensor, *piece);
      const auto bytes = static_cast<size_t>(piece->region.shape.numel() * size_of(dtype));
      if (bytes > 0) std::memcpy(to, elements.view.data, bytes);
      to += bytes;
    }
    return FileElements{std::as_const(y).view(), y};
  };
  for (TensorPiece& piece : pieces_of_shard(parts, parameter.shape, dtype, read)) {
    stored.pieces.push_back(std::move(piece));
  }
}

// Norms and biases, which are small, show whether a place is another parameter's, and so does one
// layer's experts.
std::string BucketReader::difference_from_weights() const {
  const StoredSection& main = contents_.sections.at(kMainParamSection);
  bool compares_experts = true;
  for (const auto& [name, weight] : contents_.sections.at(kWeightsSection)) {
    const auto found = main.find(name);
    const bool is_of_experts = weight.shape.rank() == 3 && compares_experts;
    if (found == main.end() || (weight.shape.rank() != 1 && !is_of_experts)) continue;
    if (is_of_experts) compares_experts = false;
    const Tensor want = read_whole(weight);
    const Tensor got = cast(read_whole(found->second), weight.dtype);
    const auto bytes = static_cast<size_t>(weight.shape.numel() * size_of(weight.dtype));
    if (std::memcmp(want.view().data, got.view().data, bytes) != 0) {
      return fmt::format("the main parameter of {} does not round to the weight", name);
    }
  }
  return "";
}

void BucketReader::read_numbers() {
  const auto& objects = checkpoint_->files().index().objects;
  const auto read = [&](const char* what, const auto& use) {
    const std::string name = fmt::format("{}0.{}/shard_0_1", kBuffers, what);
    auto object = objects.find(name);
    if (object == objects.end())
      object = objects.find(fmt::format("{}0.{}", kOptimizerChain, name));
    if (object == objects.end()) return;
    const TorchFile file = checkpoint_->files().open(object->second);
    const auto items = file.root().items();
    if (!items.empty()) use(file, items[0]);
  };
  read("optimizer", [&](const TorchFile& file, PyValue optimizer) {
    read_optimizer_numbers(file, optimizer, contents_.scalars);
  });
  read("grad_scaler", [&](const TorchFile& file, PyValue scaler) {
    read_grad_scaler(file, scaler, contents_.scalars);
  });
}

}  // namespace

bool is_dist_bucket(std::string_view name) { return bucket_name(name).has_value(); }

std::string read_dist_buckets(const std::shared_ptr<const DistCheckpoint>& checkpoint,
                              CheckpointContents& contents) {
  return BucketReader(checkpoint, contents).read();
}

}  // namespace megatron
