#include "megatron/parallel/pipeline/executor.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/turns.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

// Tensors on their way between two chunks.
struct Message {
  std::vector<Tensor> tensors;
  comm::Pending pending;
};

// A microbatch between its forward and its backward pass in a chunk.
struct InFlight {
  Activations inputs;  // leaves, and constants for tensors without gradient
  ChunkOutput output;
};

class Stage {
 public:
  Stage(const PipelineShape& shape, const PipelineLinks& links,
        std::span<const ChunkBoundary> boundaries, Stream stream, const StageWork& work)
      : shape_(shape), links_(links), boundaries_(boundaries), stream_(stream), work_(work) {}

  void run(std::span<const PipelineStep> steps) {
    has_weight_passes_ = std::ranges::any_of(
        steps, [](const PipelineStep& step) { return step.pass == Pass::kWeight; });
    // Without devices nothing waits; the steps in their order have the memory of turns.
    if (shape_.overlaps_microbatches && !stream_.is_dry()) return run_in_pairs(steps);
    std::optional<Message> incoming;
    if (!steps.empty()) incoming = receive_for(steps.front());
    for (size_t i = 0; i < steps.size(); ++i) {
      std::optional<Message> now = std::exchange(incoming, std::nullopt);
      if (i + 1 < steps.size()) incoming = receive_for(steps[i + 1]);
      if (now) wait_for(*now);
      run_step(steps[i], now ? std::move(now->tensors) : std::vector<Tensor>());
    }
    while (!sent_.empty()) forget_oldest();
  }

 private:
  void run_step(const PipelineStep& step, std::vector<Tensor> received) {
    switch (step.pass) {
      case Pass::kForward:
        return forward(step, std::move(received));
      case Pass::kBackward:
        return backward(step, received);
      case Pass::kWeight:
        return weight(step);
    }
  }

  // The steps of each two microbatches take turns.
  void run_in_pairs(std::span<const PipelineStep> steps) {
    while (!steps.empty()) {
      const int64_t pair = steps.front().microbatch / 2;
      const auto end = std::ranges::find_if(
          steps, [&](const PipelineStep& step) { return step.microbatch / 2 != pair; });
      const std::span<const PipelineStep> both(steps.begin(), end);
      const auto run_those_of = [&](int64_t microbatch) {
        for (const PipelineStep& step : both) {
          if (step.microbatch == microbatch) run_step(step, {});
        }
      };
      take_turns([&] { run_those_of(2 * pair); }, [&] { run_those_of(2 * pair + 1); });
      steps = {end, steps.end()};
    }
  }

  bool begins_model(const PipelineStep& step) const { return shape_.stage == 0 && step.chunk == 0; }
  bool ends_model(const PipelineStep& step) const {
    return shape_.stage == shape_.stages - 1 && step.chunk == shape_.chunks - 1;
  }
  const Boundary& in(const PipelineStep& step) const {
    return boundaries_[static_cast<size_t>(step.chunk)].in;
  }
  const Boundary& out(const PipelineStep& step) const {
    return boundaries_[static_cast<size_t>(step.chunk)].out;
  }

  // The pending exchange of `tensors` with the other end of a link; undefined ones do not travel.
  comm::Pending start(const comm::Group& link, std::vector<Tensor>& tensors, bool is_send) const {
    std::vector<comm::Transfer> transfers;
    for (Tensor& tensor : tensors) {
      if (tensor.defined()) transfers.push_back({tensor.view(), 1 - link.rank(), is_send});
    }
    return comm::start_exchange(transfers, link, stream_);
  }

  std::optional<Message> receive_for(const PipelineStep& step) {
    if (step.pass == Pass::kWeight) return std::nullopt;
    const bool is_forward = step.pass == Pass::kForward;
    if (is_forward ? begins_model(step) : ends_model(step)) return std::nullopt;
    Message message;
    for (const TensorSpec& tensor : is_forward ? in(step) : out(step)) {
      const bool travels = is_forward || is_floating(tensor.dtype);
      message.tensors.push_back(travels ? Tensor(tensor.shape, tensor.dtype, stream_) : Tensor());
    }
    const comm::Group& link = is_forward ? links_.from_previous : links_.from_next;
    message.pending = start(link, message.tensors, false);
    return message;
  }

  void send(const comm::Group& link, std::vector<Tensor> tensors) {
    constexpr size_t kMaxUnderWay = 2;  // older messages have long been received
    if (sent_.size() == kMaxUnderWay) forget_oldest();
    comm::Pending pending = start(link, tensors, true);
    sent_.push_back({std::move(tensors), std::move(pending)});
  }

  void forget_oldest() {
    wait_for(sent_.front());
    sent_.pop_front();
  }

  void wait_for(Message& message) {
    const TraceRange range("wait_for_stage", stream_);
    message.pending.wait();
  }

  void forward(const PipelineStep& step, std::vector<Tensor> received) {
    InFlight flight;
    for (size_t i = 0; i < received.size(); ++i) {
      const bool is_leaf = grad_enabled() && is_floating(in(step)[i].dtype);
      flight.inputs.push_back(is_leaf ? Variable::leaf(std::move(received[i]))
                                      : Variable(std::move(received[i])));
    }
    {
      const TraceRange range("forward_step", {step.microbatch, step.chunk});
      flight.output = work_.forward(step, flight.inputs);
    }
    if (!ends_model(step)) send_activations(step, flight.output.activations);
    // The graph holds what it needs of them.
    for (Variable& input : flight.inputs) input.release_data();
    if (work_.backward) {
      in_flight_.emplace(std::pair(step.chunk, step.microbatch), std::move(flight));
    }
  }

  void send_activations(const PipelineStep& step, Activations& activations) {
    const Boundary& boundary = out(step);
    invariant(activations.size() == boundary.size(),
              "a chunk gives the activations that its boundary declares");
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < boundary.size(); ++i) {
      expect_shape(activations[i].shape(), boundary[i].shape, "pipeline: activations");
      expect_dtype(activations[i].dtype(), boundary[i].dtype, "pipeline: activations");
      tensors.push_back(activations[i].data());
    }
    send(links_.to_next, std::move(tensors));
    for (Variable& sent : activations) sent.release_data();
  }

  void backward(const PipelineStep& step, const std::vector<Tensor>& received) {
    const auto found = in_flight_.find({step.chunk, step.microbatch});
    invariant(found != in_flight_.end(), "a plan runs each microbatch forward before backward");
    InFlight flight = std::move(found->second);
    in_flight_.erase(found);

    {
      const TraceRange range("backward_step", {step.microbatch, step.chunk});
      std::optional<DelayedGradients::Scope> scope;
      if (has_weight_passes_) scope.emplace(delayed_[{step.chunk, step.microbatch}]);
      work_.backward(flight.output, received);
    }
    if (!begins_model(step)) send(links_.to_previous, gradients_of(flight.inputs, in(step)));
  }

  void weight(const PipelineStep& step) {
    const TraceRange range("weight_step", {step.microbatch, step.chunk});
    auto gradients = delayed_.extract({step.chunk, step.microbatch});
    invariant(!gradients.empty(), "a plan runs each microbatch backward before its weight pass");
    work_.weight(gradients.mapped());
  }

  // The gradients of a chunk's received activations; zeros for a tensor that it did not use.
  std::vector<Tensor> gradients_of(const Activations& inputs, const Boundary& boundary) const {
    std::vector<Tensor> gradients(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!is_floating(boundary[i].dtype)) continue;
      const Tensor& gradient = inputs[i].grad();
      gradients[i] =
          gradient.defined() ? gradient : zeros(boundary[i].shape, boundary[i].dtype, stream_);
    }
    return gradients;
  }

  const PipelineShape shape_;
  const PipelineLinks& links_;
  const std::span<const ChunkBoundary> boundaries_;  // by chunk of this stage
  const Stream stream_;
  const StageWork& work_;
  bool has_weight_passes_ = false;
  std::map<std::pair<int64_t, int64_t>, InFlight> in_flight_;  // by chunk and microbatch
  std::map<std::pair<int64_t, int64_t>, DelayedGradients> delayed_;
  std::deque<Message> sent_;
};

}  // namespace

void run_backward(const ChunkOutput& output, const Grads& gradients, const Tensor& seed) {
  std::vector<Variable> roots = output.activations;
  std::vector<Tensor> dys = gradients;
  for (const Variable& loss : output.losses) {
    roots.push_back(loss);
    dys.push_back(seed);
  }
  backward(roots, dys);
}

void open_links(const PipelineLinks& links, int stage, int stages, bool is_ring, Stream stream) {
  if (stages == 1) return;
  Tensor message({1}, DType::kFloat32, stream);
  const auto open = [&](const comm::Group& link, bool is_send) {
    const comm::Transfer transfer{message.view(), 1 - link.rank(), is_send};
    comm::exchange({&transfer, 1}, link, stream);
  };
  const auto open_previous = [&] {
    if (stage == 0 && !is_ring) return;
    open(links.from_previous, false);
    open(links.to_previous, true);
  };
  const auto open_next = [&] {
    if (stage == stages - 1 && !is_ring) return;
    open(links.to_next, true);
    open(links.from_next, false);
  };
  // In the order in which the links were made: the one that closes the ring comes last.
  if (stage > 0) open_previous();
  open_next();
  if (stage == 0) open_previous();
}

void run_pipeline(std::span<const PipelineStep> steps, const PipelineShape& shape,
                  const PipelineLinks& links, std::span<const ChunkBoundary> boundaries,
                  Stream stream, const StageWork& work) {
  Stage(shape, links, boundaries, stream, work).run(steps);
}

}  // namespace megatron
