#include "megatron/parallel/expert_ranks.h"

#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/ops/elementwise.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/pieces.h"

namespace megatron {
namespace {

// A tensor under way between ranks. What is sent lives as long.
struct Moving {
  Tensor from;
  Tensor to;
  comm::Pending pending;

  const Tensor& arrived() {
    pending.wait_in_turn();
    from = {};
    return to;
  }
};

Moving start_gather(const Tensor& x, const comm::Group& group) {
  if (group.size() == 1) return {.from = {}, .to = x, .pending = {}};
  Tensor y(x.shape().with(0, x.size(0) * group.size()), x.dtype(), x.stream());
  return {x, y, comm::start_all_gather(y.view(), x.view(), group, x.stream())};
}

// The sum over ranks of this rank's rows, into y.
Moving start_sum(const Tensor& x, Tensor y, const comm::Group& group) {
  comm::Pending pending =
      comm::start_reduce_scatter(y.view(), x.view(), comm::Reduce::kSum, group, x.stream());
  return {x, std::move(y), std::move(pending)};
}

// The pieces of a rank's rows, and how they travel.
class Pieces {
 public:
  // `rows_of_expert`: of all ranks' tokens, in balance.
  Pieces(int64_t rows, int64_t rows_of_expert, Stream stream, const comm::Group& experts,
         const comm::Group& shares)
      : experts_(experts), shares_(shares), rows_(rows) {
    const bool is_cut = experts.size() > 1 && rows % 2 == 0 && cuts_tokens(rows_of_expert, stream);
    count_ = is_cut ? 2 : 1;
  }

  size_t count() const { return count_; }

  std::vector<Moving> start_gathers(const Tensor& x) const {
    std::vector<Moving> moving;
    moving.reserve(count_);
    for (size_t i = 0; i < count_; ++i) moving.push_back(start_gather(part(x, i), experts_));
    return moving;
  }
  Tensor gathered(Moving& moving) const { return gathered_sequence(moving.arrived(), shares_); }

  // Starts the sum over ranks of piece i into its rows of `whole`, which the first call makes.
  void start_sum(const Tensor& x, size_t i, Tensor& whole, std::vector<Moving>& moving) const {
    const Tensor sums = scattered_sum(x, shares_);
    if (experts_.size() == 1) {
      whole = sums;
      return;
    }
    if (!whole.defined()) whole = Tensor(x.shape().with(0, rows_), x.dtype(), x.stream());
    moving.push_back(megatron::start_sum(sums, part(whole, i), experts_));
  }

 private:
  Tensor part(const Tensor& x, size_t i) const {
    const int64_t rows = rows_ / static_cast<int64_t>(count_);
    return count_ == 1 ? x : x.slice(static_cast<int64_t>(i) * rows, rows);
  }

  comm::Group experts_;
  comm::Group shares_;
  int64_t rows_;
  size_t count_;
};

void wait_for(std::vector<Moving>& moving) {
  for (Moving& each : moving) each.arrived();
}

Grads backward(const Tensor& dy, const Wants& wants, const Pieces& pieces,
               const std::vector<ExpertPass>& passes) {
  Grads grads;
  std::vector<Moving> sums;
  std::vector<Moving> arriving = pieces.start_gathers(dy);
  for (size_t i = 0; i < passes.size(); ++i) {
    Tensor dwide;
    Grads part = passes[i].backward(pieces.gathered(arriving[i]), wants, dwide);
    grads.resize(part.size());
    for (size_t token = 0; token < 2; ++token) {
      if (part[token].defined()) {
        pieces.start_sum(std::exchange(part[token], {}), i, grads[token], sums);
      }
    }
    if (wants[2]) part[2] = passes[i].fc1_gradient(dwide);
    for (size_t matrix = 2; matrix < part.size(); ++matrix) {
      if (!part[matrix].defined()) continue;
      if (grads[matrix].defined()) {
        add_inplace(grads[matrix], part[matrix]);
      } else {
        grads[matrix] = part[matrix];
      }
    }
  }
  wait_for(sums);
  return grads;
}

}  // namespace

bool cuts_tokens(int64_t rows_of_expert, Stream stream) {
  constexpr int64_t kTileRows = 24;
  return rows_of_expert / 2 >= (stream.is_cpu() ? kTileRows : kMinPieceRows);
}

Variable experts_of_ranks(const Variable& x, const Tensor& ids, const Variable& weights,
                          const ExpertMatrices& matrices, const ExpertMlpOptions& options,
                          const comm::Group& experts, const comm::Group& shares) {
  const int64_t rows_of_expert = ids.numel() * experts.size() * shares.size() / options.num_experts;
  const Pieces pieces(x.size(0), rows_of_expert, x.stream(), experts, shares);
  // The host waits for the counts of tokens while x travels.
  std::vector<Moving> arriving_ids = pieces.start_gathers(ids);
  std::vector<Moving> arriving_weights = pieces.start_gathers(weights.data());
  std::vector<Moving> arriving = pieces.start_gathers(x.data());
  std::vector<ExpertPass> passes;
  passes.reserve(pieces.count());
  for (Moving& moving : arriving_ids)
    passes.emplace_back(pieces.gathered(moving), matrices, options);

  Tensor y;
  std::vector<Moving> sums;
  for (size_t i = 0; i < pieces.count(); ++i) {
    const Tensor piece_weights = pieces.gathered(arriving_weights[i]);
    pieces.start_sum(passes[i].forward(pieces.gathered(arriving[i]), piece_weights), i, y, sums);
  }
  wait_for(sums);
  return record("experts_of_ranks", y, expert_inputs(x, weights, matrices),
                [pieces, passes = std::move(passes)](const Tensor& dy, const Wants& wants) {
                  return backward(dy, wants, pieces, passes);
                });
}

}  // namespace megatron
