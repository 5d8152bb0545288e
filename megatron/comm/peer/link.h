#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "megatron/comm/transport.h"

namespace megatron::comm::peer {

// The places in a member's stream that the streams of the others wait for.
enum class Mark {
  kReady,   // its input of a collective is complete
  kMiddle,  // its slice of a sum is complete
  kDone     // it has read everything
};

// What PeerTransport needs of the other members: their hosts meet, their streams wait for each
// other, and their memory has addresses here. Members are threads of one process (ThreadLink) or
// processes of one host (ProcessLink). PeerTransport describes the protocol.
//
// A stream's wait is queued after the host knows, by meet(), part() or receive(), that the mark is
// queued.
class Link {
 public:
  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // A collective: begin() marks kReady, meet() and part() are those of ThreadGroup. Members call
  // these functions in the same order.
  virtual void begin(const Call& call, cudaStream_t stream) = 0;
  virtual void meet(const Call& call, const void* in) = 0;
  // A member's input, from meet() to part().
  virtual const void* memory(int member) = 0;
  virtual void part() = 0;
  virtual void mark(Mark mark, cudaStream_t stream) = 0;
  virtual void wait(cudaStream_t stream, int member, Mark mark) = 0;
  virtual void wait_for_others(cudaStream_t stream, Mark mark) = 0;
  // This rank's part has failed: the others' streams need not wait for its marks.
  virtual void give_up() noexcept = 0;

  // A message. The receiver reads the sender's memory.
  struct Sent {
    int receiver = 0;
    uint64_t number = 0;
  };
  // The data is complete when `stream` gets here. Does not wait for the receiver.
  virtual Sent send(const Call& call, const void* data, cudaStream_t stream) = 0;
  // Waits for a sender's next message; `stream` waits for the data. Then the caller queues its work
  // on the data and calls finish_receive().
  virtual const void* receive(const Call& call, cudaStream_t stream) = 0;
  virtual void finish_receive(const Call& call, cudaStream_t stream) = 0;
  // Has the receiver queued its work on the data? Is that work done?
  virtual bool is_taken(Sent sent) const = 0;
  virtual bool is_read(Sent sent) const = 0;
  // Waits until it is taken. Throws CommError.
  virtual void await_taken(const Call& call, Sent sent) = 0;
  // The stream waits until the data is read. REQUIRES: it is taken.
  virtual void wait(cudaStream_t stream, Sent sent) = 0;
  // The caller asks no more for this message.
  virtual void forget(Sent sent) = 0;

  // Outside of a collective: waits for all members' hosts, and marks nothing.
  virtual void meet_hosts() = 0;
  // A word for this rank's GPU, which is no longer zero when a member has failed; null if members
  // cannot fail without this one.
  virtual const uint64_t* stop() const { return nullptr; }
  // Are some members' GPUs the same one?
  virtual bool shares_a_gpu() const = 0;

  // May this GPU wait for one whose process is gone? Then nothing may wait for this GPU.
  virtual bool may_be_stuck() const = 0;
};

// Has the user disabled peer copies (MEGATRON_PEER_COPIES=off)?
bool is_turned_off();

// All members call one of these, according to Transport::threads(); `host` outlives the result.
// Both return null on all members if their GPUs cannot access each other's memory;
// make_process_link() also if the processes share no memory, or a user disabled peer copies for one
// of them.
std::unique_ptr<Link> make_thread_link(Transport& host, Device device);
std::unique_ptr<Link> make_process_link(Transport& host, Device device);

}  // namespace megatron::comm::peer
