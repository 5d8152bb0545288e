#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace megatron {

struct FlatLayoutOptions {
  int64_t alignment = 64;        // elements; every parameter starts at a multiple of it
  int64_t bucket_size = 0;       // elements after which a bucket closes; 0: one bucket for all
  int64_t bucket_alignment = 1;  // elements; every bucket ends at a multiple of it
};

// A parameter to place. Items are in the order of registration.
struct FlatItem {
  int64_t numel = 0;
  bool has_own_bucket = false;  // shares its bucket with no other parameter
};

// Elements [begin, end) of the buffer.
struct FlatPlace {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bucket = 0;
};

// A part of the buffer, [begin, end), that is reduced as a unit. Parameters fill it up to
// unpadded_end. Buckets are adjacent.
struct FlatBucket {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t unpadded_end = 0;
};

// The place of every parameter in one flat buffer. Parameters are in reverse order of registration,
// which is roughly the order in which backward completes their gradients: the first bucket is ready
// first.
//
//   [ last parameter | pad | the one before | pad ][ ...            ][ first parameter | pad ]
//   <------------------ bucket 0 -----------------><--- bucket 1 ---><------- bucket 2 ------>
struct FlatLayout {
  std::vector<FlatPlace> places;  // by position in `items`
  std::vector<FlatBucket> buckets;
  int64_t numel = 0;
};

// A bucket closes when it holds at least bucket_size elements in two or more parameters.
// Compat: with alignment 1 this is the layout of Megatron-LM core_r0.5.0; with alignment 64 and
// bucket_alignment lcm(dp, 128) that of later versions.
FlatLayout flat_layout(std::span<const FlatItem> items, const FlatLayoutOptions& options);

// Divides the buffer by group: range i is [ends[i-1], ends[i]) and belongs to groups[i]. Neighbours
// of one group are one range.
struct FlatRanges {
  std::vector<int64_t> ends;
  std::vector<int32_t> groups;
};
// `groups` holds the group of every item. Padding belongs to the group `padding`; without one, to
// the group before it, for work that padding does not disturb.
FlatRanges ranges_of(const FlatLayout& layout, std::span<const int32_t> groups,
                     std::optional<int32_t> padding = std::nullopt);

// Elements [begin, end) of a flat buffer.
struct FlatSpan {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// The ranges within `span`, counted from its begin.
FlatRanges cut_to(const FlatRanges& ranges, const FlatSpan& span);

// The elements that rank `rank` of `count` updates: an equal share of every bucket, or everything
// for one rank. REQUIRES: every bucket is divisible by count.
std::vector<FlatSpan> shares_of(const FlatLayout& layout, int64_t rank, int64_t count);

}  // namespace megatron
