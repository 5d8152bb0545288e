#include "megatron/parallel/context/head_sums.h"

#include <utility>

#include "megatron/core/error.h"
#include "megatron/kernels/merge_heads.h"
#include "megatron/parallel/context/chunks.h"

namespace megatron {
namespace {

using kernels::ConstHeadsView;
using kernels::HeadsView;

constexpr HeadsRegion kWhole;

size_t index_of(int64_t chunk, int64_t half) { return static_cast<size_t>(2 * chunk + half); }

// The two parts of a region: its halves, or, of one half, its chunks.
std::array<HeadsRegion, 2> cut(const HeadsRegion& region) {
  std::array<HeadsRegion, 2> parts = {region, region};
  if (region.num_halves == 2) {
    for (const int64_t i : {0, 1}) {
      parts[static_cast<size_t>(i)].half = i;
      parts[static_cast<size_t>(i)].num_halves = 1;
    }
    return parts;
  }
  for (const int64_t i : {0, 1}) {
    parts[static_cast<size_t>(i)].chunk = i;
    parts[static_cast<size_t>(i)].num_chunks = 1;
  }
  return parts;
}

}  // namespace

HeadSums::HeadSums(const HeadsView& out, int64_t groups, bool in_fp32, Stream stream)
    : out_(out),
      groups_(groups),
      in_fp32_(in_fp32 && out.dtype != DType::kFloat32),
      stream_(stream) {}

HeadSums::Place HeadSums::place_of(const HeadsRegion& region) const {
  return places_[index_of(region.chunk, region.half)];
}

void HeadSums::set_place(const HeadsRegion& region, Place place) {
  for (int64_t chunk = region.chunk; chunk < region.chunk + region.num_chunks; ++chunk) {
    for (int64_t half = region.half; half < region.half + region.num_halves; ++half) {
      places_[index_of(chunk, half)] = place;
    }
  }
}

bool HeadSums::is_at_one_place(const HeadsRegion& region) const {
  if (region.num_chunks * region.num_halves == 1) return true;
  const auto [first, second] = cut(region);
  return is_at_one_place(first) && is_at_one_place(second) && place_of(first) == place_of(second);
}

std::vector<HeadsRegion> HeadSums::parts_at_one_place(const HeadsRegion& region) const {
  if (is_at_one_place(region)) return {region};
  std::vector<HeadsRegion> parts;
  for (const HeadsRegion& part : cut(region)) {
    for (const HeadsRegion& small : parts_at_one_place(part)) parts.push_back(small);
  }
  return parts;
}

template <class View>
View HeadSums::part_of(View view, const HeadsRegion& whole, const HeadsRegion& part) const {
  const int64_t length = out_.s / 2;
  view = tokens_of(view, (part.chunk - whole.chunk) * length, part.num_chunks * length);
  return part.num_halves == whole.num_halves ? view : half_of(view, part.half, groups_);
}

HeadsView HeadSums::sums_of(const HeadsRegion& region) {
  if (!sums_.defined()) {
    sums_ = Tensor({out_.s, out_.b, out_.heads * out_.d}, DType::kFloat32, stream_);
  }
  return part_of(kernels::heads_of(sums_.view(), out_.heads), kWhole, region);
}

bool HeadSums::has_term(const HeadsRegion& region) const {
  return !is_at_one_place(region) || place_of(region) != Place::kNowhere;
}

HeadsView HeadSums::room(const HeadsRegion& region) {
  const HeadsView out = part_of(out_, kWhole, region);
  if (!has_term(region)) return out;
  settle();
  room_ = Tensor({out.s, out.b, out.heads * out.d}, out.dtype, stream_);
  return kernels::heads_of(room_.view(), out.heads);
}

void HeadSums::apply(const Term& term, bool is_last) {
  for (const HeadsRegion& part : parts_at_one_place(term.region)) {
    const ConstHeadsView view = part_of(term.view, term.region, part);
    const HeadsView out = part_of(out_, kWhole, part);
    const Place before = place_of(part);
    if (before == Place::kNowhere) {
      if (view.data != out.data) kernels::convert_heads(out, view, stream_);
      set_place(part, Place::kOut);
      continue;
    }
    const Place after = in_fp32_ && !is_last ? Place::kSums : Place::kOut;
    const HeadsView own = before == Place::kSums ? sums_of(part) : out;
    const HeadsView sum = after == Place::kSums ? sums_of(part) : out;
    if (term.own_lse.defined()) {
      kernels::merge_attention(sum, term.lse, part.chunk * out_.s / 2, own, view,
                               term.own_lse.view(), stream_);
    } else {
      kernels::add_heads(sum, own, view, stream_);
    }
    set_place(part, after);
  }
}

void HeadSums::apply_deferred(bool is_last) {
  if (!deferred_) return;
  const Term term = *std::exchange(deferred_, std::nullopt);
  apply(term, is_last);
}

void HeadSums::add(const HeadsRegion& region, const ConstHeadsView& term) {
  if (room_.defined() && term.data == room_.view().data) {
    deferred_ = {.region = region, .view = term, .memory = std::exchange(room_, Tensor())};
  } else {
    apply({.region = region, .view = term}, false);
  }
}

void HeadSums::merge(const HeadsRegion& region, const ConstHeadsView& term, TensorView lse,
                     const Tensor& term_lse) {
  invariant(is_at_one_place(region),
            "attention to some keys is merged with that of the same queries to others");
  if (!has_term(region)) return add(region, term);
  deferred_ = {.region = region,
               .view = term,
               .lse = lse,
               .own_lse = term_lse,
               .memory = std::exchange(room_, Tensor())};
}

void HeadSums::finish() {
  apply_deferred(true);
  for (const HeadsRegion& part : parts_at_one_place(kWhole)) {
    if (place_of(part) != Place::kSums) continue;
    kernels::convert_heads(part_of(out_, kWhole, part), sums_of(part), stream_);
  }
}

}  // namespace megatron
