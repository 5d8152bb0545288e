#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "megatron/comm/transport.h"

namespace megatron::comm::peer {

// Points in a member's stream that the streams of the others wait for.
enum class Mark {
  kReady,   // its input of a collective is complete
  kMiddle,  // its slice of a sum is complete
  kDone     // it has read everything
};

// Connects PeerTransport with the other members: synchronizes hosts and streams, and maps the
// others' memory. Members are threads of one process (ThreadLink) or processes of one host
// (ProcessLink). PeerTransport describes the protocol.
//
// A stream's wait is queued only after enter(), leave() or receive() have shown that the mark is
// queued.
class Link {
 public:
  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // A collective: begin() marks kReady; enter() and leave() as in ThreadGroup. Members call these
  // functions in the same order.
  virtual void begin(const Call& call, cudaStream_t stream) = 0;
  virtual void enter(const Call& call, const void* in) = 0;
  // A member's input; valid from enter() to leave().
  virtual const void* memory(int member) = 0;
  virtual void leave() = 0;
  virtual void mark(Mark mark, cudaStream_t stream) = 0;
  virtual void wait(cudaStream_t stream, int member, Mark mark) = 0;
  virtual void wait_for_others(cudaStream_t stream, Mark mark) = 0;
  // This rank has failed in the collective: the others' streams need not wait for its marks.
  virtual void give_up() noexcept = 0;

  // A message. The receiver reads the sender's memory.
  struct Sent {
    int receiver = 0;
    uint64_t number = 0;
  };
  // The data is complete after the current work of `stream`. Does not wait for the receiver.
  virtual Sent send(const Call& call, const void* data, cudaStream_t stream) = 0;
  // Waits for a sender's next message; `stream` waits for the data. Then the caller queues its work
  // on the data and calls finish_receive().
  virtual const void* receive(const Call& call, cudaStream_t stream) = 0;
  virtual void finish_receive(const Call& call, cudaStream_t stream) = 0;
  // True once the receiver has queued its work on the data; once that work is done.
  virtual bool is_taken(Sent sent) const = 0;
  virtual bool is_read(Sent sent) const = 0;
  // Waits until it is taken. Throws CommError.
  virtual void await_taken(const Call& call, Sent sent) = 0;
  // The stream waits until the data is read. REQUIRES: it is taken.
  virtual void wait(cudaStream_t stream, Sent sent) = 0;
  // Ends the use of a `Sent`.
  virtual void forget(Sent sent) = 0;

  // Outside of a collective: a barrier of the members' hosts, without marks.
  virtual void sync_hosts() = 0;
  // A word that this rank's GPU can poll; nonzero when a member has failed. Null if members cannot
  // fail without this one.
  virtual const uint64_t* stop() const { return nullptr; }
  // True if members share a GPU.
  virtual bool shares_a_gpu() const = 0;

  // True if this GPU may wait for one whose process is gone; then nothing may wait for this GPU.
  virtual bool may_be_stuck() const = 0;
};

// True if MEGATRON_PEER_COPIES=off.
bool peer_copies_disabled();

// All members call one of these, according to Transport::threads(); `host` outlives the result.
// Both return null on all members if their GPUs cannot access each other's memory;
// make_process_link() also if the processes share no memory, or peer copies are disabled for one of
// them.
std::unique_ptr<Link> make_thread_link(Transport& host, Device device);
std::unique_ptr<Link> make_process_link(Transport& host, Device device);

}  // namespace megatron::comm::peer
