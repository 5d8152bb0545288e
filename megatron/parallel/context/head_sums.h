#pragma once

#include <array>
#include <optional>
#include <vector>

#include "megatron/kernels/attention.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// A part of the heads of two chunks of tokens: of some chunks, and some halves (half_of).
struct HeadsRegion {
  int64_t chunk = 0, num_chunks = 2;
  int64_t half = 0, num_halves = 2;
};

// Heads of two chunks of tokens whose values are the sums of terms. The first term of a region is
// written to `out` itself. With `in_fp32` the sums of more terms are kept in fp32 and rounded once;
// otherwise they are rounded into `out` at each term.
class HeadSums {
 public:
  // out [2 n, b, heads, d]: must outlive this. Its halves are those of `groups` of heads.
  HeadSums(const kernels::HeadsView& out, int64_t groups, bool in_fp32, Stream stream);

  bool has_term(const HeadsRegion& region) const;
  // Memory for the next term of a region, in the dtype of `out`: the place in `out` if the region
  // has none yet. It is valid until add() or merge().
  kernels::HeadsView room(const HeadsRegion& region);
  // Adds a term. One in room() may be added later, so that sums are made at once.
  void add(const HeadsRegion& region, const kernels::ConstHeadsView& term);
  // Or merges attention to some keys, in room(), with attention to others
  // (kernels::merge_attention). lse [b, heads, 2 n] is that of the region's sum, in all chunks; the
  // first term's is there.
  void merge(const HeadsRegion& region, const kernels::ConstHeadsView& term, TensorView lse,
             const Tensor& term_lse);
  // Adds the deferred terms. If they are the last of their regions, the sums are rounded at once.
  void settle(bool are_last = false) { apply_deferred(are_last); }
  // Rounds the sums into `out`. Call it once, after the last term.
  void finish();

 private:
  // The location of a region's sum.
  enum class Place { kNowhere, kOut, kSums };
  struct Term {
    HeadsRegion region;
    kernels::ConstHeadsView view;
    TensorView lse{};  // of a merge
    Tensor own_lse{};
    Tensor memory{};  // of the view
  };

  Place place_of(const HeadsRegion& region) const;
  void set_place(const HeadsRegion& region, Place place);
  bool is_at_one_place(const HeadsRegion& region) const;
  // A region in parts that are at one place each.
  std::vector<HeadsRegion> parts_at_one_place(const HeadsRegion& region) const;
  template <class View>
  View part_of(View view, const HeadsRegion& whole, const HeadsRegion& part) const;
  kernels::HeadsView sums_of(const HeadsRegion& region);
  void apply(const Term& term, bool is_last);
  void apply_deferred(bool is_last);

  kernels::HeadsView out_;
  int64_t groups_;
  bool in_fp32_;
  Stream stream_;
  Tensor sums_;  // fp32, once there are any
  Tensor room_;
  std::optional<Term> deferred_;
  std::array<Place, 4> places_{};  // by chunk, then half
};

}  // namespace megatron
