#pragma once

#include <memory>
#include <span>

#include "megatron/comm/call.h"
#include "megatron/comm/group.h"
#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Moves views between the ranks of a group. Views are on the stream's device. On a GPU a call
// queues its work on the stream and returns; on the CPU the work is done on return.
//
// On the CPU, and on GPUs of threads, sums are taken in rank order 0, 1, .., in fp32 for 16-bit
// elements: the result depends only on the ranks' data, and every rank gets the same bits. A
// maximum with a NaN is NaN. In a group of one, outputs are the inputs (copied if they are
// different memory).
//
// While two functions take turns (core/turns.h), a large all_reduce, all_gather, reduce_scatter or
// all_to_all ends the turn of its function: it runs beside the other one's work.
//
// Every call throws CommError if a member is gone, if members make different calls, or if a member
// does not arrive before the time-out; the message names the rank, the group and the missing call.
// Throws ShapeError and DtypeError if the views do not fit together.
namespace megatron::comm {

// x := reduction of x over the ranks.   x [n] fp32 | fp64 | fp16 | bf16 | int64 | int32
void all_reduce(TensorView x, Reduce op, const Group& group, Stream stream);

// y := x of all ranks in rank order.   y [size * n] out   x [n] in, any dtype; x may be this rank's
// part of y
void all_gather(TensorView y, ConstView x, const Group& group, Stream stream);

// y := this rank's part of the reduction of x.   y [n] out   x [size * n] in; y may be this rank's
// part of x; the rest of x is unchanged or undefined
void reduce_scatter(TensorView y, ConstView x, Reduce op, const Group& group, Stream stream);

// x := x of rank `root`.
void broadcast(TensorView x, int root, const Group& group, Stream stream);

// Part i of x goes to rank i; part i of y comes from rank i.   x, y [size * n], different memory
void all_to_all(TensorView y, ConstView x, const Group& group, Stream stream);

// Messages between two members arrive in the order of sending. On the CPU a send never waits for
// its receiver, and x may be reused on return.
void send(ConstView x, int to, const Group& group, Stream stream);
void recv(TensorView x, int from, const Group& group, Stream stream);

// One message of a batch.
struct Transfer {
  TensorView view;  // read by a send, written by a receive
  int peer = 0;     // position in the group
  bool is_send = false;
};
// All transfers at once, in any order: a pipeline stage's exchange with its neighbours.
void exchange(std::span<const Transfer> transfers, const Group& group, Stream stream);

// Returns after every member has called it. The host waits.
void barrier(const Group& group);

// Prepares the group for collectives on a GPU. Otherwise the first of them does, and the host waits
// for it. Every member calls it.
void connect(const Group& group, Stream stream);

// Prepares the group's all_reduce and all_gather for work that is recorded (WorkGraph). Returns
// true if that is possible: on the CPU, for one member, and for two to eight members that access
// each other's memory, each with a GPU of its own. Every member calls it and gets the same answer.
// Members record and launch the same calls.
bool can_record(const Group& group, Stream stream);
// A barrier of the members' hosts. Call it right before each launch of recorded work: from then on
// the GPUs wait for each other, and a host that waits for a GPU before its own launch could
// deadlock.
void launch_barrier(const Group& group, Stream stream);
// Throws CommError if a rank is known to have failed: results of recorded work are then invalid.
void expect_no_failure(const Group& group);

// An asynchronous collective, which overlaps the stream's other work. Until wait(), nothing else
// may read or write its views, and their memory must live. The destructor waits. On the CPU a
// collective completes when it is started, except for receives: wait() does them, so that starting
// never waits for a sender. On GPUs of threads, too, wait() does the receives.
class Pending {
 public:
  Pending();
  ~Pending();
  Pending(Pending&& other) noexcept;
  Pending& operator=(Pending&& other) noexcept;

  // Orders later work of the stream that started it after the collective. On a GPU the host does
  // not wait for the collective; only an exchange of messages waits for other ranks' hosts. A
  // second call does nothing.
  void wait();
  // The same for later work of another stream of the device.
  void wait(Stream later);
  // Ends the turn of a function that takes turns, and then waits.
  void wait_in_turn();

  struct State;
  explicit Pending(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

// Like the functions above, after the stream's work so far, on a stream of the group.
// With `after`, a collective of the stream that is under way, after that one, too; then the result
// is that of both.
Pending start_all_reduce(TensorView x, Reduce op, const Group& group, Stream stream,
                         Pending after = {});
Pending start_all_gather(TensorView y, ConstView x, const Group& group, Stream stream);
Pending start_reduce_scatter(TensorView y, ConstView x, Reduce op, const Group& group,
                             Stream stream);
Pending start_all_to_all(TensorView y, ConstView x, const Group& group, Stream stream);
Pending start_exchange(std::span<const Transfer> transfers, const Group& group, Stream stream);

}  // namespace megatron::comm
