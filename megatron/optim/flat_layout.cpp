#include "megatron/optim/flat_layout.h"

#include <algorithm>

#include "megatron/core/error.h"

namespace megatron {
namespace {

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

FlatLayout flat_layout(std::span<const FlatItem> items, const FlatLayoutOptions& options) {
  invariant(options.alignment > 0 && options.bucket_alignment > 0, "alignments are positive");
  FlatLayout layout;
  layout.places.resize(items.size());

  int64_t bucket_begin = 0;
  int64_t end = 0;
  int64_t num_in_bucket = 0;
  const auto close_bucket = [&] {
    if (num_in_bucket == 0) return;
    const int64_t padded = rounded_up(end, options.bucket_alignment);
    layout.buckets.push_back({.begin = bucket_begin, .end = padded, .unpadded_end = end});
    bucket_begin = padded;
    end = padded;
    num_in_bucket = 0;
  };

  for (size_t i = items.size(); i-- > 0;) {
    if (items[i].has_own_bucket) close_bucket();
    // The padding at the end of a bucket may leave the next start off the parameters' alignment.
    const int64_t begin = rounded_up(end, options.alignment);
    end = begin + items[i].numel;
    layout.places[i] = {
        .begin = begin, .end = end, .bucket = static_cast<int64_t>(layout.buckets.size())};
    num_in_bucket += 1;
    const bool is_full =
        options.bucket_size > 0 && end - bucket_begin >= options.bucket_size && num_in_bucket > 1;
    if (is_full || items[i].has_own_bucket) close_bucket();
  }
  close_bucket();
  layout.numel = layout.buckets.empty() ? 0 : layout.buckets.back().end;
  return layout;
}

FlatRanges ranges_of(const FlatLayout& layout, std::span<const int32_t> groups,
                     std::optional<int32_t> padding) {
  FlatRanges ranges;
  int64_t position = 0;
  const auto extend_to = [&](int64_t end, int32_t group) {
    if (end == position) return;
    position = end;
    if (!ranges.groups.empty() && ranges.groups.back() == group) {
      ranges.ends.back() = end;
    } else {
      ranges.ends.push_back(end);
      ranges.groups.push_back(group);
    }
  };
  const auto pad_to = [&](int64_t end) {
    if (position < end) extend_to(end, padding.value_or(ranges.groups.back()));
  };
  for (size_t i = layout.places.size(); i-- > 0;) {  // the order of the buffer
    pad_to(layout.places[i].begin);
    extend_to(layout.places[i].end, groups[i]);
  }
  pad_to(layout.numel);
  return ranges;
}

FlatRanges cut_to(const FlatRanges& ranges, const FlatSpan& span) {
  FlatRanges cut;
  for (size_t i = 0; i < ranges.ends.size(); ++i) {
    const int64_t end = std::min(ranges.ends[i], span.end) - span.begin;
    const int64_t before = cut.ends.empty() ? 0 : cut.ends.back();
    if (end <= before) continue;
    cut.ends.push_back(end);
    cut.groups.push_back(ranges.groups[i]);
  }
  return cut;
}

std::vector<FlatSpan> shares_of(const FlatLayout& layout, int64_t rank, int64_t count) {
  if (count == 1) return {{0, layout.numel}};
  std::vector<FlatSpan> shares;
  for (const FlatBucket& bucket : layout.buckets) {
    const int64_t size = bucket.end - bucket.begin;
    invariant(size % count == 0, "a bucket divides evenly among the ranks that share it");
    const int64_t begin = bucket.begin + rank * (size / count);
    shares.push_back({begin, begin + size / count});
  }
  return shares;
}

}  // namespace megatron
