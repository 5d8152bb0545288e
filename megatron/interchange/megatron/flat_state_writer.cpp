#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/optimizer.h"
#include "megatron/interchange/megatron/rank_file.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/optim/flat_parameters.h"

namespace megatron {
namespace {

FlatLayout flat_layout_of(const RankShard& shard, size_t chunk) {
  std::vector<FlatItem> items;
  for (const RankParameter& parameter : shard.trained(chunk))
    items.push_back({parameter.shape.numel()});
  // Compat: core_r0.5.0 has buckets where reduction is overlapped, on the first stage.
  const bool has_buckets = chunk == 0 && shard.pipeline() == 0 &&
                           value_or(shard.contents().args, "overlap_grad_reduce", false);
  return flat_layout(items, {.alignment = 1,
                             .bucket_size = has_buckets ? kMegatronBucketSize : 0,
                             .bucket_alignment = shard.layout().data_parallel_size});
}

// [{dtype of gradients: [number for each bucket]} for each chunk]
template <class Size>
void write_bucket_sizes(PickleWriter& pickle, const RankShard& shard,
                        const std::vector<FlatLayout>& layouts, const Size& size) {
  pickle.begin_list();
  for (const FlatLayout& layout : layouts) {
    pickle.begin_dict();
    pickle.dtype(shard.grad_dtype()), pickle.begin_list();
    for (const FlatBucket& bucket : layout.buckets) pickle.integer(size(bucket));
    pickle.end_list();
    pickle.end_dict();
  }
  pickle.end_list();
}

void write_flat_buffer(TorchWriter& writer, const RankShard& shard, const RankShard::Chunk& chunk,
                       const FlatLayout& layout, const char* section) {
  const auto write_fp32 = [&](FileElements elements) {
    if (elements.view.dtype == DType::kFloat32) return writer.write_part_later(std::move(elements));
    const Tensor converted = cast(copy_of(elements.view), DType::kFloat32);
    writer.write_part_later({converted.view(), converted});
  };
  int64_t at = 0;
  for (size_t i = chunk.size(); i-- > 0;) {
    invariant(layout.places[i].begin == at, "parameters lie one behind the other");
    write_fp32(shard.elements(section, chunk[i]));
    at = layout.places[i].end;
    const FlatBucket& bucket = layout.buckets[static_cast<size_t>(layout.places[i].bucket)];
    if (at < bucket.unpadded_end || bucket.end == at) continue;
    const Tensor padding = zeros({bucket.end - at}, DType::kFloat32, Stream{});
    writer.write_part_later({padding.view(), padding});
    at = bucket.end;
  }
}

}  // namespace

void write_flat_state(const std::filesystem::path& file, const RankShard& shard) {
  TorchWriter writer(file);
  PickleWriter& pickle = writer.pickle();
  std::vector<FlatLayout> layouts;
  for (size_t chunk = 0; chunk < shard.chunks().size(); ++chunk)
    layouts.push_back(flat_layout_of(shard, chunk));
  const char* main =
      shard.contents().sections.contains(kMainParamSection) ? kMainParamSection : kWeightsSection;
  const std::pair<const char*, const char*> kinds[] = {
      {"param", main}, {"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}};
  pickle.begin_dict();
  pickle.text("per_bucket_numel");
  write_bucket_sizes(pickle, shard, layouts, [](const FlatBucket& b) { return b.end - b.begin; });
  pickle.text("per_bucket_numel_unpadded");
  write_bucket_sizes(pickle, shard, layouts,
                     [](const FlatBucket& b) { return b.unpadded_end - b.begin; });
  for (size_t chunk = 0; chunk < layouts.size(); ++chunk) {
    pickle.integer(static_cast<int64_t>(chunk)), pickle.begin_dict();
    pickle.dtype(shard.grad_dtype()), pickle.begin_dict();
    for (const auto& [theirs, ours] : kinds) {
      pickle.text(theirs), pickle.begin_list();
      for (const FlatBucket& bucket : layouts[chunk].buckets) {
        writer.tensor(DType::kFloat32, {bucket.end - bucket.begin});
      }
      pickle.end_list();
    }
    pickle.end_dict(), pickle.end_dict();
  }
  pickle.end_dict();
  for (size_t chunk = 0; chunk < layouts.size(); ++chunk) {
    for (const auto& [theirs, ours] : kinds) {
      write_flat_buffer(writer, shard, shard.trained(chunk), layouts[chunk], ours);
    }
  }
  writer.commit();
}

}  // namespace megatron
