#pragma once

#include <memory>

#include "megatron/comm/transport.h"

// Collectives between GPUs of one host by copy engines over NVLink, without NCCL. Concurrent
// products keep all multiprocessors, a group needs no start-up, threads may share a GPU, and sums
// have the same bits as on CPU ranks. A Link (link.h) connects members that are threads of one
// process, or processes.
//
// A collective is three steps of the host and one of each GPU:
//
//   1  The rank marks `ready` after its stream's work and enters, which waits for the others and
//      returns the addresses of their memory.
//   2  Its stream waits for the others' `ready`, pulls the data, sums it if required, and marks
//      `done`. Large sums pull on a separate stream, which the first one then waits for.
//   3  It leaves, which waits for the others, and its stream waits for their `done`: then no
//      member reads its memory.
//
// A large all_reduce leaves twice: each rank sums its slice, and pulls the others' slices after
// their mark `middle`, which says that they are summed, and that those ranks have read this one's
// memory.
//
// Freedom from deadlock: a stream only waits for marks that are already queued, so the work of all
// GPUs follows one order, the order of queueing, and always ends. The host waits in step 1 like a
// CPU rank, with its time-outs and messages. Between steps 1 and 3 it waits for no other rank, and
// it leaves even if its GPU fails, so step 3 is short. When a process dies, ProcessLink ends the
// waits for its GPU.
//
// Messages. A sender passes the data's address to the receiver. The receiver's stream waits until
// the data is complete, pulls it and marks it as read, and the receiver marks the message as taken.
// - A batch that only sends first copies into the transport's memory and waits for no rank.
// - A batch that also receives lends its memory, which saves the copy. It is finished - exchange()
//   returns, or wait() of a started one - when its own receives and then those of its receivers are
//   queued. Members that exchange with each other must therefore finish such batches in the order
//   in which they started them, as in a loop that is the same on all ranks.
// A receiver gets a sender's messages in the order of its waits, as on the CPU.
//
// Work captured into a CUDA graph cannot synchronize hosts: there, all_reduce and all_gather are
// kernels that synchronize on the GPUs (one_shot.h), and other calls throw Unsupported. GPUs then
// wait for each other whatever their hosts do, while a host that allocates memory or loads a kernel
// may wait for all GPUs of its process: hence launch_barrier().
namespace megatron::comm::peer {

// All members call it; `host` outlives the result. Returns null, on all of them, if NCCL must be
// used: members are on several hosts, a GPU cannot access another one's memory, or the user
// disabled peer copies (MEGATRON_PEER_COPIES=off). Throws CommError if a member does not arrive.
std::unique_ptr<DeviceTransport> make_peer_transport(Transport& host, Device device);

}  // namespace megatron::comm::peer
