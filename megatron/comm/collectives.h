#pragma once

#include <memory>
#include <span>

#include "megatron/comm/call.h"
#include "megatron/comm/group.h"
#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Moving views between the ranks of a group. Views lie on the stream's device. On a GPU a call
// queues its work on the stream and returns; on the CPU it is done when the call returns.
//
// On the CPU, and on GPUs of threads, sums are taken in rank order 0, 1, .., in fp32 for 16-bit
// elements, so that a result depends on the ranks' data and nothing else, and every rank gets the
// same bits; a maximum with a NaN is NaN. In a group of one, outputs are the inputs (copied when
// they are different memory).
//
// Every call throws CommError when a member is gone, when members called different collectives or
// sizes, or when a member does not come before the time-out: the message names the rank, the group
// and the call that is missing. ShapeError and DtypeError when the views do not fit each other.
namespace megatron::comm {

// x := reduction of x over the ranks.   x [n] fp32 | fp64 | fp16 | bf16 | int64 | int32
void all_reduce(TensorView x, Reduce op, const Group& group, Stream stream);

// y := the x of all ranks, one after the other.   y [size * n] out   x [n] in, any dtype; x may be
// this rank's own part of y
void all_gather(TensorView y, ConstView x, const Group& group, Stream stream);

// y := this rank's part of the reduction of x.   y [n] out   x [size * n] in; y may be this rank's
// own part of x; the rest of x is left as it is or undefined
void reduce_scatter(TensorView y, ConstView x, Reduce op, const Group& group, Stream stream);

// x of rank `root` on all ranks.
void broadcast(TensorView x, int root, const Group& group, Stream stream);

// Part i of x goes to rank i; part i of y comes from rank i.   x, y [size * n], different memory
void all_to_all(TensorView y, ConstView x, const Group& group, Stream stream);

// Messages between two members, matched in the order of sending between each pair. A send never
// waits for its receiver on the CPU: x may be reused when the call returns.
void send(ConstView x, int to, const Group& group, Stream stream);
void recv(TensorView x, int from, const Group& group, Stream stream);

// One message of a batch.
struct Transfer {
  TensorView view;  // read by a send, written by a receive
  int peer = 0;     // position in the group
  bool is_send = false;
};
// All of them at once, in any order: what one pipeline stage exchanges with its neighbours.
void exchange(std::span<const Transfer> transfers, const Group& group, Stream stream);

// Returns when every member has called it. The host waits.
void barrier(const Group& group);

// Makes what the group's collectives on a GPU need, which the first of them does otherwise and the
// host waits for. Called by every member.
void connect(const Group& group, Stream stream);

// A collective under way beside the stream's other work. Until wait(), its views are neither read
// nor written by anybody else, and their memory lives. The destructor waits. On the CPU it is done
// from the start, but for messages to be received: wait() receives them, so that starting does not
// wait for a sender. On GPUs of threads wait() receives them, too.
class Pending {
 public:
  Pending();
  ~Pending();
  Pending(Pending&& other) noexcept;
  Pending& operator=(Pending&& other) noexcept;

  // Later work of the stream that started it comes after the collective. On a GPU the host does not
  // wait for the collective, only for other ranks' hosts if it exchanges messages with them.
  // The second call does nothing.
  void wait();

  struct State;
  explicit Pending(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

// As the functions above, ordered after the stream's work so far, on a stream of the group's own.
Pending start_all_reduce(TensorView x, Reduce op, const Group& group, Stream stream);
Pending start_all_gather(TensorView y, ConstView x, const Group& group, Stream stream);
Pending start_reduce_scatter(TensorView y, ConstView x, Reduce op, const Group& group,
                             Stream stream);
Pending start_exchange(std::span<const Transfer> transfers, const Group& group, Stream stream);

}  // namespace megatron::comm
