#include "megatron/training/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/texts.h"
#include "megatron/core/host_name.h"
#include "megatron/core/listed.h"
#include "megatron/kernels/hash_term.h"
#include "megatron/tensor/hash_sums.h"

namespace megatron {
namespace {

// Elements [begin, end) of a tensor on this rank.
struct HeldPart {
  std::string what;  // the tensor
  std::string name;  // of its parameter
  FlatSpan span;
  Tensor elements;
  MeshAxes copies;  // ranks along these axes have it, too
  uint64_t hash = 0;
};

// Tensors of the model, but for those that data-parallel ranks divide.
void hold_model(const TrainingState& state, std::vector<HeldPart>& held) {
  std::set<std::string> divided;
  for (const FlatBuffer& buffer : state.parameters.buffers()) {
    if (buffer.bucket_params.empty()) continue;
    for (const size_t index : buffer.parameters) {
      divided.insert(state.parameters.parameters()[index].name);
    }
  }
  for (const Module* chunk : state.chunks) {
    for (const Parameter& tensor : named_tensors(*chunk)) {
      if (divided.contains(tensor.name)) continue;
      const Tensor& data = tensor.variable.data();
      held.push_back({tensor.name, tensor.name, {0, data.numel()}, data, tensor.info.copy_axes()});
    }
  }
}

// Do data-parallel ranks divide the optimizer's state?
bool divides_state(const FlatParameters& parameters) {
  return std::ranges::any_of(parameters.buffers(), [](const FlatBuffer& buffer) {
    int64_t kept = 0;
    for (const FlatSpan& share : buffer.shares) kept += share.size();
    return kept < buffer.layout.numel;
  });
}

// The tensors that data-parallel ranks shard or may shard.
void hold_parts(const TrainingState& state, std::vector<HeldPart>& held) {
  state.parameters.visit_divided(
      [&](const OptimizedParameter& parameter, const FlatSpan& part, const Tensor& elements) {
        held.push_back({parameter.name, parameter.name, part, elements,
                        parameter.shared_axes.with(update_axes(parameter.gradient_axes, true))});
      });
  for (const OptimizedParameter& parameter : state.parameters.parameters()) {
    if (parameter.fp8 == nullptr || !parameter.fp8->gathers_weight()) continue;
    const Tensor& rows = parameter.fp8->weight().rows;
    if (!rows.defined()) continue;
    held.push_back({fmt::format("FP8 copy of {}", parameter.name),
                    parameter.name,
                    {0, rows.numel()},
                    rows,
                    parameter.shared_axes.with(parameter.gradient_axes.in(kDataAxes))});
  }
  const bool is_divided = divides_state(state.parameters);
  state.optimizer.visit_memory([&](const OptimizedParameter& parameter, std::string_view kind,
                                   const FlatSpan& part, const Tensor& elements) {
    held.push_back({fmt::format("{} of {}", kind, parameter.name), parameter.name, part, elements,
                    parameter.shared_axes.with(update_axes(parameter.gradient_axes, is_divided))});
  });
}

// Everything that this rank has, with hashes, in an order that is the same on ranks with the same
// part of the model.
std::vector<HeldPart> held_parts(const TrainingState& state) {
  std::vector<HeldPart> held;
  hold_model(state, held);
  hold_parts(state, held);
  HashSums sums(held.size());
  for (size_t i = 0; i < held.size(); ++i) {
    const Tensor& elements = held[i].elements;
    sums.add(i, elements.view(), held[i].span.begin, elements.stream());
  }
  const std::vector<uint64_t> hashes = sums.values();
  for (size_t i = 0; i < held.size(); ++i) held[i].hash = hashes[i];
  return held;
}

std::vector<uint64_t> gathered_words(std::vector<uint64_t> words, const comm::Group& group) {
  const auto count = static_cast<int64_t>(words.size());
  std::vector<uint64_t> all(words.size() * static_cast<size_t>(group.size()));
  comm::all_gather({all.data(), {group.size() * count}, DType::kInt64},
                   {words.data(), {count}, DType::kInt64}, group, Stream{});
  return all;
}

bool are_same_words(std::span<const uint64_t> words) {
  return std::ranges::all_of(words, [&](uint64_t word) { return word == words.front(); });
}

// Ranks of the world have different bits of a tensor.
struct Difference {
  std::string what;
  std::vector<int> ranks;
  std::vector<uint64_t> hashes;  // by position in `ranks`
};

// "rank 1 (gpu7)"; hosts by rank.
std::string named_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const int rank : ranks) {
    names.push_back(fmt::format("{} ({})", rank, hosts[static_cast<size_t>(rank)]));
  }
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", listed(names));
}

// Says which ranks have other bits than most.
std::string difference_text(const Difference& difference, const std::vector<std::string>& hosts) {
  const std::vector<uint64_t>& hashes = difference.hashes;
  std::map<uint64_t, std::vector<int>> by_hash;
  for (size_t i = 0; i < hashes.size(); ++i) by_hash[hashes[i]].push_back(difference.ranks[i]);
  const auto most = std::ranges::max_element(by_hash, std::less(),
                                             [](const auto& one) { return one.second.size(); });
  if (2 * most->second.size() > hashes.size()) {
    std::vector<int> others;
    for (const auto& [hash, ranks] : by_hash) {
      if (hash != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(others);
    return fmt::format("{}: {} differ{} from {}", difference.what, named_ranks(others, hosts),
                       others.size() > 1 ? "" : "s", named_ranks(most->second, hosts));
  }
  std::vector<std::string> sides;
  sides.reserve(by_hash.size());
  for (const auto& [hash, ranks] : by_hash) sides.push_back(named_ranks(ranks, hosts));
  std::ranges::sort(sides);
  return fmt::format("{}: {} differ", difference.what, fmt::join(sides, " and "));
}

// Compares parts, which all ranks of the group should have.
void compare_parts(const std::vector<const HeldPart*>& parts, const comm::Group& group,
                   std::vector<Difference>& differences) {
  if (group.size() == 1) return;
  uint64_t digest = 0;
  for (size_t i = 0; i < parts.size(); ++i) digest += kernels::hash_term(i, parts[i]->hash);
  if (are_same_words(gathered_words({digest}, group))) return;

  constexpr size_t kWords = 3;  // of a part
  std::vector<uint64_t> words;
  for (const HeldPart* part : parts) {
    words.insert(words.end(), {part->hash, static_cast<uint64_t>(part->span.begin),
                               static_cast<uint64_t>(part->span.end)});
  }
  const std::vector<uint64_t> all = gathered_words(std::move(words), group);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto of_ranks = [&](size_t word) {
      std::vector<uint64_t> values;
      for (size_t at = kWords * i + word; at < all.size(); at += kWords * parts.size()) {
        values.push_back(all[at]);
      }
      return values;
    };
    std::vector<uint64_t> hashes = of_ranks(0);
    // Ranks that divide their parameters differently have different parts of a copy.
    const bool has_same_part = are_same_words(of_ranks(1)) && are_same_words(of_ranks(2));
    if (!has_same_part || are_same_words(hashes)) continue;
    const std::span<const int> ranks = group.world_ranks();
    differences.push_back({parts[i]->what, {ranks.begin(), ranks.end()}, std::move(hashes)});
  }
}

template <class Holds>
std::vector<const HeldPart*> parts_where(const std::vector<HeldPart>& held, const Holds& holds) {
  std::vector<const HeldPart*> parts;
  for (const HeldPart& part : held) {
    if (holds(part)) parts.push_back(&part);
  }
  return parts;
}

// The lines of all ranks, each once.
std::vector<std::string> lines_of_all(const std::vector<std::string>& own,
                                      const comm::Group& world) {
  std::set<std::string> lines;
  for (const std::string& text :
       comm::gathered_texts(fmt::format("{}", fmt::join(own, "\n")), world)) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      lines.insert(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return {lines.begin(), lines.end()};
}

}  // namespace

void expect_equal_replicas(TrainingState& state) {
  const ParallelContext& parallel = state.parallel;
  if (parallel.world.size() == 1) return;
  state.gradients.finish_gathers();
  const std::vector<HeldPart> held = held_parts(state);
  std::vector<Difference> differences;
  // Each part on the ranks along its data axes, and on those along each other axis.
  for (const MeshAxes axes :
       {kDenseDataAxes, MeshAxes(MeshAxis::kTensor), kExpertDataAxes, MeshAxes(MeshAxis::kInstance),
        MeshAxes(MeshAxis::kExpertTensor), MeshAxes(MeshAxis::kExpert)}) {
    const MeshAxes kind = axes.intersects(kDataAxes) ? kDataAxes : axes;
    compare_parts(
        parts_where(held, [&](const HeldPart& part) { return part.copies.in(kind) == axes; }),
        parallel.group(axes), differences);
  }
  for (const TiedParameter& tied : state.gradients.tied()) {
    compare_parts(parts_where(held, [&](const HeldPart& part) { return part.name == tied.name; }),
                  tied.stages, differences);
  }
  int32_t num_differences = static_cast<int32_t>(differences.size());
  comm::all_reduce({&num_differences, {1}, DType::kInt32}, comm::Reduce::kMax, parallel.world,
                   Stream{});
  if (num_differences == 0) return;
  const std::vector<std::string> hosts = comm::gathered_texts(host_name(), parallel.world);
  std::vector<std::string> own;
  own.reserve(differences.size());
  for (const Difference& difference : differences) {
    own.push_back(difference_text(difference, hosts));
  }
  const std::vector<std::string> lines = lines_of_all(own, parallel.world);
  throw ReplicaError(
      fmt::format("iteration {}: {} tensors differ on ranks that should have equal copies: memory "
                  "was changed, or a device computes wrongly. The iteration is not saved; test the "
                  "hosts of these ranks, and go on from the last checkpoint\n  {}",
                  state.progress.iteration, lines.size(), listed(lines, "\n  ")));
}

}  // namespace megatron
