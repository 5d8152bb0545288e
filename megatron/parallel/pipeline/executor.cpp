#include "megatron/parallel/pipeline/executor.h"

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

// A message between two chunks, and its memory.
struct Message {
  Tensor tensor;
  comm::Pending pending;
};

// A microbatch between its forward and its backward pass in a chunk.
struct InFlight {
  Variable input;  // a leaf; undefined where the model begins
  Variable output;
};

class Stage {
 public:
  Stage(const PipelineShape& shape, const PipelineLinks& links, const ActivationType& type,
        const StageWork& work)
      : shape_(shape), links_(links), type_(type), work_(work) {}

  void run(std::span<const PipelineStep> steps) {
    std::optional<Message> incoming;
    if (!steps.empty()) incoming = receive_for(steps.front());
    for (size_t i = 0; i < steps.size(); ++i) {
      std::optional<Message> now = std::exchange(incoming, std::nullopt);
      if (i + 1 < steps.size()) incoming = receive_for(steps[i + 1]);
      if (now) wait_for(*now);
      Tensor received = now ? std::move(now->tensor) : Tensor();
      if (steps[i].pass == Pass::kForward) {
        forward(steps[i], std::move(received));
      } else {
        backward(steps[i], std::move(received));
      }
    }
    while (!sent_.empty()) forget_oldest();
  }

 private:
  bool begins_model(const PipelineStep& step) const { return shape_.stage == 0 && step.chunk == 0; }
  bool ends_model(const PipelineStep& step) const {
    return shape_.stage == shape_.stages - 1 && step.chunk == shape_.chunks - 1;
  }

  std::optional<Message> receive_for(const PipelineStep& step) {
    const bool is_forward = step.pass == Pass::kForward;
    if (is_forward ? begins_model(step) : ends_model(step)) return std::nullopt;
    const comm::Group& link = is_forward ? links_.from_previous : links_.from_next;
    Message message{Tensor(type_.shape, type_.dtype, type_.stream), {}};
    const comm::Transfer transfer{message.tensor.view(), 1 - link.rank(), false};
    message.pending = comm::start_exchange({&transfer, 1}, link, type_.stream);
    return message;
  }

  void send(const comm::Group& link, Tensor tensor) {
    constexpr size_t kMaxUnderWay = 2;  // older messages have long been received
    if (sent_.size() == kMaxUnderWay) forget_oldest();
    const comm::Transfer transfer{tensor.view(), 1 - link.rank(), true};
    comm::Pending pending = comm::start_exchange({&transfer, 1}, link, type_.stream);
    sent_.push_back({std::move(tensor), std::move(pending)});
  }

  void forget_oldest() {
    wait_for(sent_.front());
    sent_.pop_front();
  }

  void wait_for(Message& message) {
    const TraceRange range("wait_for_stage", type_.stream);
    message.pending.wait();
  }

  void forward(const PipelineStep& step, Tensor received) {
    InFlight flight;
    if (received.defined()) {
      flight.input =
          grad_enabled() ? Variable::leaf(std::move(received)) : Variable(std::move(received));
    }
    {
      const TraceRange range("forward_step", {step.microbatch, step.chunk});
      flight.output = work_.forward(step, flight.input);
    }
    if (!ends_model(step)) {
      expect_shape(flight.output.shape(), type_.shape, "pipeline: activations");
      send(links_.to_next, flight.output.data());
      flight.output.release_data();
    }
    if (work_.backward) {
      in_flight_.emplace(std::pair(step.chunk, step.microbatch), std::move(flight));
    }
  }

  void backward(const PipelineStep& step, Tensor received) {
    const auto found = in_flight_.find({step.chunk, step.microbatch});
    invariant(found != in_flight_.end(), "a plan runs each microbatch forward before backward");
    InFlight flight = std::move(found->second);
    in_flight_.erase(found);

    {
      const TraceRange range("backward_step", {step.microbatch, step.chunk});
      work_.backward(flight.output, received);
    }
    if (!begins_model(step)) send(links_.to_previous, flight.input.grad());
  }

  const PipelineShape shape_;
  const PipelineLinks& links_;
  const ActivationType& type_;
  const StageWork& work_;
  std::map<std::pair<int64_t, int64_t>, InFlight> in_flight_;  // by chunk and microbatch
  std::deque<Message> sent_;
};

}  // namespace

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
                  const PipelineLinks& links, const ActivationType& type, const StageWork& work) {
  Stage(shape, links, type, work).run(steps);
}

}  // namespace megatron
