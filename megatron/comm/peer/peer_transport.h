#pragma once

#include <memory>

#include "megatron/comm/transport.h"

// GPUs of ranks that are threads of one process copy each other's memory: by copy engines, over
// NVLink, without NCCL. Products that run beside keep all multiprocessors, a group costs no
// start-up, several ranks may share a GPU, and sums have the bits of CPU ranks.
//
// A collective is three steps of the host and one of each GPU:
//
//   1  a rank records the event `ready` behind its stream's work, meets the other members
//      (ThreadGroup::meet), and learns where their memory is;
//   2  its stream waits for the others' `ready`, pulls what it needs, sums it if that is asked, and
//      a second event, `done`, is recorded behind that; large sums pull on a stream of their own,
//      which the first one then waits for;
//   3  it parts from the others (ThreadGroup::part), and its stream waits for their `done`: from
//      here on nobody reads its memory.
//
// An all_reduce that is not small parts once more: each rank sums its slice, and pulls the others'
// slices when they are `middle`, summed, which also means that their ranks have read this one's.
//
// Why nothing hangs. A stream only ever waits for an event that is recorded when the wait is
// queued, so the work of all GPUs is in one order, that of queueing, and always ends. The host
// waits in step 1 like a CPU rank, with its time-outs and messages; between steps 1 and 3 it waits
// for no other rank, and parts even if its GPU fails, so that step 3 is short. Why one event of a
// kind is enough for a member: it is recorded anew after a step at which all members have queued
// their waits for the time before - `ready` and `middle` after step 3, `done` after step 1 of the
// next collective.
//
// Messages. A sender hands the receiver a ticket: where the data is, and when. The receiver's
// stream waits, pulls, records when it is done, and marks the ticket as taken.
// - A batch that only sends copies first, into memory of the transport, and waits for nobody.
// - A batch that also receives lends its memory, which saves the copy. It is finished - exchange()
//   returns, or wait() of a started one - when its own receives are queued and then those of its
//   receivers are. So members that exchange with each other finish such batches in the order in
//   which they began them, as in a loop that is the same on all ranks.
// Messages of a sender are received in the order in which they are waited for, as on the CPU.
//
// Work that is recorded into a CUDA graph cannot meet anybody: Unsupported.
namespace megatron::comm::peer {

// Called by all members; `host` outlives the result. Null, on all of them, where NCCL must serve:
// members are processes, a GPU cannot access another one's memory, or the user says so
// (MEGATRON_PEER_COPIES=off). Throws CommError when a member does not come.
std::unique_ptr<DeviceTransport> make_peer_transport(Transport& host, Device device);

}  // namespace megatron::comm::peer
