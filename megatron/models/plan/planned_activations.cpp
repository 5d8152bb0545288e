#include "megatron/models/plan/planned_activations.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "megatron/models/plan/planned_stack.h"
#include "megatron/models/plan/planned_stage.h"
#include "megatron/parallel/pipeline/schedule.h"
#include "megatron/parallel/tensor/vocabulary_loss.h"

namespace megatron {
namespace {

class ActivationPlan {
 public:
  ActivationPlan(const PlannedTraining& t, int64_t stage)
      : t_(t), number_(stage), stage_(stage_of(t, stage)), sizes_(microbatch_sizes(t)) {
    for (const StackPart& part : stage_.stacks) {
      stacks_.emplace_back(part, sizes_, t.transformer.seq_length);
    }
  }

  double microbatches_in_flight() const {
    return static_cast<double>(chunks_in_flight()) / static_cast<double>(stage_.num_chunks);
  }

  // Scratch memory of the kernel that needs most.
  int64_t workspace() const {
    int64_t most = 0;
    for (const PlannedStack& stack : stacks_) most = std::max(most, stack.layer.workspace);
    return most;
  }

  // With --checkpoint-in-cpu. Each chunk has memory for the most microbatches that it ever has.
  int64_t inputs_on_host() const {
    std::vector<int64_t> held(static_cast<size_t>(stage_.num_chunks));
    std::vector<int64_t> most = held;
    for (const PipelineStep& step : training_steps({.stage = number_,
                                    .stages = num_stages(t_),
                                    .chunks = stage_.num_chunks,
                                    .microbatches = t_.num_microbatches})) {
      const auto chunk = static_cast<size_t>(step.chunk);
      held[chunk] += step.pass == Pass::kForward ? 1 : -1;
      most[chunk] = std::max(most[chunk], held[chunk]);
    }
    int64_t of_chunk = 0;
    for (const PlannedStack& stack : stacks_) of_chunk += stack.inputs_on_host();
    return of_chunk * std::accumulate(most.begin(), most.end(), int64_t{0});
  }

  // Appends the rows of the peak and says when it is.
  std::string append(std::vector<PlannedRow>& rows) const {
    std::vector<MemoryRow> input = input_rows();
    if (num_stages(t_) > 1) {
      input.push_back({"messages between stages", num_messages() * message_bytes()});
    }
    if (stage_.has_head &&
        is_all_warmup()) {  // every microbatch gets its loss before any goes back
      input.push_back(
          {"losses of the other microbatches", (t_.num_microbatches - 1) * kept_by_head()});
    }
    int64_t held = total_bytes(input) + kept_by_layers();
    std::string peak_at;
    std::vector<MemoryRow> extra;
    std::vector<MemoryRow> input_then;  // when peak_at is
    int64_t peak = -1;
    const auto consider = [&](int64_t before, std::vector<MemoryRow> more, std::string when) {
      if (before + total_bytes(more) <= peak) return;
      peak = before + total_bytes(more);
      extra = std::move(more);
      peak_at = std::move(when);
      input_then = input;
    };
    if (stage_.has_head) {
      std::vector<MemoryRow> rows_of_loss = head_rows();
      rows_of_loss.push_back(inputs_on_device(stacks_.size()));
      consider(held, std::move(rows_of_loss), "loss");
    }
    int64_t peak_layers = kept_by_layers();
    int64_t kept = kept_by_layers();
    for (auto stack = stacks_.rbegin(); stack != stacks_.rend(); ++stack) {
      // Layers of a stage's chunks count on.
      int64_t layer = stage_.num_chunks * stack->part.num_layers;
      for (MemoryRow& row : input) {
        if (&*stack == &stacks_.back() || row.what != final_norm_name(*stack)) continue;
        const int64_t freed = stack->final_norm() + stack->hidden();  // of this microbatch
        row.bytes -= freed;
        held -= freed;
      }
      for (auto region = stack->regions.rbegin(); region != stack->regions.rend(); ++region) {
        const int64_t before = peak;
        std::vector<MemoryRow> more = stack->backward_rows(*region);
        more.push_back(inputs_on_device(stack, region));
        consider(held, std::move(more),
                 fmt::format("backward of {}layer {}", stack->part.name, layer));
        if (peak != before) peak_layers = kept;
        const int64_t freed = stack->kept_by(*region);
        held -= freed;
        kept -= freed;
        layer -= region->num_layers;
      }
    }
    const auto add = [&](const std::string& what, int64_t bytes) {
      if (bytes > 0) rows.push_back({MemoryCategory::kActivations, what, bytes});
    };
    for (const MemoryRow& row : input_then) add(row.what, row.bytes);
    for (const PlannedStack& stack : stacks_) add_layers(rows, stack, peak_layers);
    for (const MemoryRow& row : extra) add(row.what, row.bytes);
    return peak_at;
  }

 private:
  using StackAt = std::vector<PlannedStack>::const_reverse_iterator;
  using RegionAt = std::vector<LayerRegion>::const_reverse_iterator;

  // What --checkpoint-in-cpu leaves on the device (autograd/host_store.h): of the first so many
  // stacks, the input that was stored last.
  MemoryRow inputs_on_device(size_t num_stacks) const {
    MemoryRow row{"inputs of recomputed layers on the device", 0};
    for (size_t i = 0; i < num_stacks; ++i) {
      if (stacks_[i].has_inputs_on_host()) row.bytes += stacks_[i].stored_input();
    }
    return row;
  }
  // The same in the backward pass of a region, whose input is back, and that of the region before
  // it on the way. Another microbatch may have been stored last.
  MemoryRow inputs_on_device(StackAt stack, RegionAt region) const {
    const auto number = static_cast<size_t>(stacks_.rend() - stack);  // of this stack, from 1
    if (!region->is_recomputed || !stack->has_inputs_on_host()) {
      return inputs_on_device(chunks_in_flight() > 1 ? stacks_.size() : number);
    }
    MemoryRow row = inputs_on_device(chunks_in_flight() > 1 ? stacks_.size() : number - 1);
    if (!stack->has_distributed_inputs())
      row.bytes += stack->stored_input();  // else it is gathered
    if (region + 1 != stack->regions.rend()) row.bytes += stack->stored_input();
    return row;
  }

  // Where it is not part of the head.
  static std::string final_norm_name(const PlannedStack& stack) {
    return stack.part.name + "final norm, input, statistics and output";
  }
  // An interleaved schedule with a microbatch for each stage (parallel/pipeline/schedule.h).
  bool is_all_warmup() const {
    return stage_.num_chunks > 1 && t_.num_microbatches == num_stages(t_);
  }
  // Forward passes whose backward pass has not begun, in model chunks (Narayanan et al. 2021,
  // fig. 4): one after another p - rank, interleaved the warm-up and one more.
  int64_t chunks_in_flight() const {
    const int64_t behind = num_stages(t_) - number_ - 1;
    const int64_t chunks = stage_.num_chunks;
    const int64_t all = chunks * t_.num_microbatches;
    if (chunks == 1) return std::min(behind + 1, all);
    if (is_all_warmup()) return all;
    return std::min(2 * behind + (chunks - 1) * num_stages(t_) + 1, all);
  }
  // Two being sent and one being received (parallel/pipeline/executor.cpp), if there are so many:
  // the last stage sends gradients alone.
  int64_t num_messages() const {
    const bool is_last = number_ == num_stages(t_) - 1;
    const int64_t a_microbatch = stage_.num_chunks * (is_last ? 1 : 2);
    return std::min<int64_t>(3, a_microbatch * t_.num_microbatches - 1);
  }
  // A decoder hands on the encoder's output, too.
  int64_t message_bytes() const {
    const PlannedStack& last = stacks_.back();
    return last.layer.input.bytes + (last.sizes.encoder_length > 0 ? last.encoder_output() : 0);
  }

  int64_t kept_by_layers() const {
    int64_t sum = 0;
    for (const PlannedStack& stack : stacks_) sum += stack.kept();
    return sum * chunks_in_flight();
  }

  // The kept tensors of a stack by name, of all layers together; `bytes` of those of this stack and
  // of the later ones are there.
  void add_layers(std::vector<PlannedRow>& rows, const PlannedStack& stack, int64_t& bytes) const {
    int64_t whole = 0;
    int64_t recomputed = 0;
    for (const LayerRegion& region : stack.regions) {
      whole += region.is_recomputed ? 0 : region.num_layers;
      recomputed += region.is_recomputed ? 1 : 0;
    }
    const auto add = [&](const MemoryRow& row, int64_t count) {
      const int64_t here = std::min(bytes, row.bytes * count * chunks_in_flight());
      bytes -= here;
      if (here <= 0) return;
      rows.push_back({MemoryCategory::kActivations,
                      fmt::format("{}layers: {}", stack.part.name, row.what), here});
    };
    if (!stack.has_inputs_on_host()) {
      add({"input of what is recomputed", stack.stored_input()}, recomputed);
    }
    add(stack.layer.input, whole);
    for (const MemoryRow& row : stack.layer.kept) add(row, whole);
  }

  // What embedding a microbatch keeps, and tables.
  std::vector<MemoryRow> input_rows() const {
    const TransformerConfig& c = t_.transformer;
    std::vector<MemoryRow> rows;
    if (c.position_embedding_type == PositionEmbedding::kRope) {
      const int64_t positions = std::max(c.seq_length, c.max_position_embeddings);
      rows.push_back({"rotary table",
                      sizes_.block(positions * ((c.rotary_dim() + 1) / 2 * 2), DType::kFloat32)});
    }
    for (const PlannedStack& stack : stacks_) {
      const std::string& name = stack.part.name;
      const int64_t tokens = stack.tokens();
      rows.push_back({name + "relative position bias", stack.relative_bias()});
      if (stage_.has_embedding && t_.device == DeviceType::kCpu) {  // else they stay on the host
        const bool has_types = c.kind == ModelKind::kBert && c.tokentypes() > 0;
        rows.push_back({name + "token and position ids", 2 * stack.block(tokens, DType::kInt64)});
        if (has_types) rows.push_back({"token types", stack.block(tokens, DType::kInt64)});
      }
      if (stage_.has_embedding && c.embed_layernorm) {
        rows.push_back({"embedding norm, input and statistics",
                        stack.hidden() + norm_statistics_bytes(c, sizes_)});
      }
      if (&stack != &stacks_.back() || (stack.part.has_end && !stage_.has_head)) {
        rows.push_back(
            {final_norm_name(stack), chunks_in_flight() * (stack.final_norm() + stack.hidden())});
      }
      if (num_stages(t_) > 1 && stack.sizes.encoder_length > 0) {
        rows.push_back({"encoder's output", chunks_in_flight() * stack.encoder_output()});
      }
    }
    return rows;
  }

  // What the head keeps for the backward pass.
  int64_t kept_by_head() const {
    const PlannedStack& last = stacks_.back();
    const bool is_bert = last.config().kind == ModelKind::kBert;
    return last.final_norm() + last.hidden() +
           (is_bert ? 3 * last.hidden() + norm_statistics_bytes(last.config(), sizes_) : 0);
  }
  // The loss (vocabulary_loss()), when the gradient of a piece of the logits, written over them, is
  // multiplied back.
  std::vector<MemoryRow> head_rows() const {
    const PlannedStack& last = stacks_.back();
    const TransformerConfig& c = last.config();
    const int64_t tokens = last.tokens();
    const int64_t columns = c.padded_vocab_size / sizes_.tp;
    const int64_t b = sizes_.micro_batch_size;
    const int64_t rows = b * positions_of_piece(tokens / b, b, columns, c.params_dtype);
    const bool is_bert = c.kind == ModelKind::kBert;
    return {
        {"final norm, input and statistics", last.final_norm()},
        {"final norm, output", last.hidden()},
        {"LM head: dense layer, activation, norm",
         is_bert ? 3 * last.hidden() + norm_statistics_bytes(c, sizes_) : 0},
        {"a piece of the logits, then their gradient", last.block(rows * columns, c.params_dtype)},
        {"labels, loss mask, losses and their gradient",
         last.block(tokens, DType::kInt64) + 3 * last.block(tokens, DType::kFloat32)},
        {"gradient of the final norm's output", last.hidden() + 2 * gathered_bytes(c, sizes_)}};
  }

  const PlannedTraining& t_;
  int64_t number_;
  PlannedStage stage_;
  MicrobatchSizes sizes_;
  std::vector<PlannedStack> stacks_;
};

}  // namespace

ActivationMemory activation_memory(const PlannedTraining& t, int64_t stage) {
  const ActivationPlan plan(t, stage);
  ActivationMemory memory;
  memory.peak_at = plan.append(memory.rows);
  memory.microbatches_in_flight = plan.microbatches_in_flight();
  memory.workspace = plan.workspace();
  memory.inputs_on_host = plan.inputs_on_host();
  return memory;
}

}  // namespace megatron
