#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/comm/nccl/watchdog.h"
#include "megatron/comm/peer/driver.h"
#include "megatron/comm/peer/link.h"
#include "megatron/comm/processes/process_group.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/allocator.h"
#include "megatron/device/cuda/check.h"
#include "megatron/device/exported_memory.h"

// Memory of another process's GPU is opened once for each segment of its allocator, at its first
// use in a collective. An exported segment is never freed by its allocator
// (device/exported_memory.h), so an opened one stays valid.
//
// Streams wait for numbers in host memory that the processes share and that streams write: the
// number of the collective, or of the message plus one. Waits take any later number, too. There is
// one entry for each of the last kEntries collectives, and for each of the last kMessages messages:
// a member reuses an entry when its GPU has finished its last use, so that numbers only grow. A
// host that is too far ahead of its GPU waits.
namespace megatron::comm::peer {
namespace {

constexpr auto kProcessSpinTime = std::chrono::milliseconds(1);
constexpr uint64_t kEntries = 256;
constexpr uint64_t kMessages = ProcessGroup::kMessages;
constexpr uint64_t kReleased = uint64_t{1} << 62;  // beyond every number

// One member's numbers of a collective.
struct Entry {
  uint64_t marks[4];  // by Mark; the last one is set if a member has failed
};
// Marks of a message: the data is complete, the receiver has read it.
struct Numbers {
  uint64_t ready;
  uint64_t read;
};

// An address in another process's memory.
struct Remote {
  uint64_t segment = 0;  // there; 0: no data
  uint64_t id = 0;       // of the allocation: an address may be used again
  int64_t offset = 0;
  cudaIpcMemHandle_t handle{};
};
static_assert(sizeof(Remote) <= ProcessGroup::kPartBytes);

// Data that members exchange first.
struct Introduction {
  Remote memory;  // to try
  cudaUUID_t gpu{};
};
static_assert(sizeof(Introduction) <= ProcessGroup::kPartBytes);

uint64_t seen(uint64_t& number) {
  return std::atomic_ref<uint64_t>(number).load(std::memory_order_acquire);
}

void store(uint64_t& number, uint64_t value) {
  std::atomic_ref<uint64_t>(number).store(value, std::memory_order_release);
}

void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  throw DeviceError(fmt::format("{}: the driver's error {}", call, static_cast<int>(result)));
}

template <class T>
std::span<const std::byte> bytes_of(const T& part) {
  return std::as_bytes(std::span(&part, 1));
}

class ProcessLink final : public Link, private nccl::Watched {
 public:
  static int64_t extra_bytes(int size);
  ProcessLink(Transport& host, Device device, std::unique_ptr<ProcessGroup> group);
  ~ProcessLink() override;

  // All members call it once. The reason why their GPUs cannot cooperate; empty if they can.
  std::string try_out();

  void begin(const Call& call, cudaStream_t stream) override;
  void enter(const Call& call, const void* in) override;
  const void* memory(int member) override;
  void leave() override { group_->leave(); }
  void mark(Mark mark, cudaStream_t stream) override;
  void wait(cudaStream_t stream, int member, Mark mark) override;
  void wait_for_others(cudaStream_t stream, Mark mark) override;
  void give_up() noexcept override;

  Sent send(const Call& call, const void* data, cudaStream_t stream) override;
  const void* receive(const Call& call, cudaStream_t stream) override;
  void finish_receive(const Call& call, cudaStream_t stream) override;
  bool is_taken(Sent sent) const override { return group_->is_taken(sent.receiver, sent.number); }
  bool is_read(Sent sent) const override {
    return seen(numbers(rank(), sent.receiver, sent.number).read) > sent.number;
  }
  void await_taken(const Call& call, Sent sent) override;
  void wait(cudaStream_t stream, Sent sent) override {
    await(stream, numbers(rank(), sent.receiver, sent.number).read, sent.number + 1);
  }
  void forget(Sent) override {}
  void sync_hosts() override {
    group_->enter({Operation::kBarrier}, {});
    group_->leave();
  }
  bool shares_a_gpu() const override { return shares_a_gpu_; }
  // Its fourth mark, which abort() alone writes.
  const uint64_t* stop() const override {
    auto* const entries = reinterpret_cast<Entry*>(group_->extra().data());
    return reinterpret_cast<const uint64_t*>(address_of(entries[0].marks[3]));
  }
  bool may_be_stuck() const override {
    return std::uncaught_exceptions() > 0 || host_.failure().has_value();
  }

 private:
  // For the rank's watchdog: if a rank has failed, its GPU's work may be lost. Then all waiting
  // streams are released, and the host's next call throws.
  std::optional<std::string> problem() override {
    host_.check_for_failures();
    return host_.failure();
  }
  void abort(const std::string& reason) override;
  bool uses_nccl() const override { return false; }

  int rank() const { return host_.rank(); }
  Entry& entry(int member) const;  // of the current collective
  Numbers& numbers(int sender, int receiver, uint64_t message) const;
  // Numbers that the stream writes and waits for.
  void write(cudaStream_t stream, uint64_t& number, uint64_t value) const;
  void await(cudaStream_t stream, uint64_t& number, uint64_t value) const;
  CUdeviceptr address_of(uint64_t& number) const;

  Remote exported(const void* data);
  const void* opened(int member, const Remote& remote);
  std::string receiver_text(int member) const {
    return group_->name_and_call(member) + " to receive";
  }

  Transport& host_;
  const Device device_;
  const std::unique_ptr<ProcessGroup> group_;
  std::shared_ptr<nccl::Watchdog> watchdog_;  // after the test copy
  std::byte* mapped_ = nullptr;               // the shared memory's address for the GPU
  bool shares_a_gpu_ = false;

  uint64_t number_ = 0;  // of the current collective, from 1; the same on all members
  cudaStream_t stream_ = nullptr;
  const void* in_ = nullptr;
  uint64_t received_ = 0;  // the last message
  std::vector<CUstreamBatchMemOpParams> waits_;

  std::map<std::pair<uint64_t, uint64_t>, cudaIpcMemHandle_t> exported_;  // by segment and id
  std::map<std::tuple<int, uint64_t, uint64_t>, std::byte*> opened_;      // and member
};

int64_t ProcessLink::extra_bytes(int size) {
  return static_cast<int64_t>(kEntries * sizeof(Entry)) * size +
         static_cast<int64_t>(kMessages * sizeof(Numbers)) * size * size;
}

ProcessLink::ProcessLink(Transport& host, Device device, std::unique_ptr<ProcessGroup> group)
    : host_(host), device_(device), group_(std::move(group)) {
  group_->spin_for(kProcessSpinTime);
}

std::string ProcessLink::try_out() {
  // All members enter, even after a failure here.
  std::string own;
  const auto attempt = [&own](const auto& f) {
    try {
      if (own.empty()) f();
    } catch (const Error& error) {
      own = error.what();
    }
  };
  void* data = nullptr;
  Introduction mine;
  attempt([&] {
    MG_CUDA(cudaSetDevice(device_.index));
    cudaDeviceProp gpu{};
    MG_CUDA(cudaGetDeviceProperties(&gpu, device_.index));
    mine.gpu = gpu.uuid;
    const std::span<std::byte> shared = group_->extra();
    MG_CUDA(cudaHostRegister(shared.data(), shared.size(),
                             cudaHostRegisterPortable | cudaHostRegisterMapped));
    void* mapped = nullptr;
    MG_CUDA(cudaHostGetDevicePointer(&mapped, shared.data(), 0));
    mapped_ = static_cast<std::byte*>(mapped);
    write(nullptr, entry(rank()).marks[0], kEntries);
    MG_CUDA(cudaStreamSynchronize(nullptr));
    if (seen(entry(rank()).marks[0]) != kEntries) own = "a stream's number does not arrive";
    store(entry(rank()).marks[0], 0);
    data = allocator_of(device_).allocate(1, MemoryCategory::kWorkspace);
    mine.memory = exported(data);
  });
  std::set<std::string> gpus;
  group_->enter({Operation::kConnect}, bytes_of(mine));
  for (int member = 0; member < host_.size(); ++member) {
    Introduction theirs;
    std::memcpy(&theirs, group_->part_of(member), sizeof(theirs));
    gpus.emplace(theirs.gpu.bytes, sizeof(theirs.gpu.bytes));
    if (member != rank()) attempt([&] { opened(member, theirs.memory); });
  }
  shares_a_gpu_ = std::ssize(gpus) < host_.size();
  group_->leave();
  if (data != nullptr) allocator_of(device_).release(data);
  cudaGetLastError();  // clears the error; this rank continues without peer copies
  own = first_problem(host_, own);
  if (own.empty()) {
    watchdog_ = nccl::watchdog_of(host_.context(), device_);
    watchdog_->add(*this);
  }
  return own;
}

ProcessLink::~ProcessLink() {
  if (watchdog_ != nullptr) watchdog_->remove(*this);
  if (may_be_stuck()) {  // streams may still use the memory
    group_->segment().keep();
    return;
  }
  cudaSetDevice(device_.index);
  cudaDeviceSynchronize();
  for (const auto& [key, data] : opened_) cudaIpcCloseMemHandle(data);
  if (mapped_ != nullptr) cudaHostUnregister(group_->extra().data());
}

Entry& ProcessLink::entry(int member) const {
  auto* const entries = reinterpret_cast<Entry*>(group_->extra().data());
  return entries[static_cast<uint64_t>(member) * kEntries + number_ % kEntries];
}

Numbers& ProcessLink::numbers(int sender, int receiver, uint64_t message) const {
  const auto size = static_cast<uint64_t>(host_.size());
  auto* const all =
      reinterpret_cast<Numbers*>(group_->extra().data() + size * kEntries * sizeof(Entry));
  const uint64_t pair = static_cast<uint64_t>(sender) * size + static_cast<uint64_t>(receiver);
  return all[pair * kMessages + message % kMessages];
}

CUdeviceptr ProcessLink::address_of(uint64_t& number) const {
  const auto offset = reinterpret_cast<std::byte*>(&number) - group_->extra().data();
  return reinterpret_cast<CUdeviceptr>(mapped_ + offset);
}

void ProcessLink::write(cudaStream_t stream, uint64_t& number, uint64_t value) const {
  check_driver(driver().write_value(stream, address_of(number), value, 0), "cuStreamWriteValue64");
}

void ProcessLink::await(cudaStream_t stream, uint64_t& number, uint64_t value) const {
  check_driver(driver().wait_value(stream, address_of(number), value, CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue64");
}

Remote ProcessLink::exported(const void* data) {
  if (data == nullptr) return {};
  unsigned long long id = 0;
  CUdeviceptr segment = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
  void* values[] = {&id, &segment};
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  check_driver(driver().pointer_attributes(2, names, values, address), "cuPointerGetAttributes");
  auto found = exported_.find({segment, id});
  if (found == exported_.end()) {
    void* const begin = reinterpret_cast<void*>(segment);
    cudaIpcMemHandle_t handle{};
    if (const cudaError_t status = cudaIpcGetMemHandle(&handle, begin); status != cudaSuccess) {
      throw DeviceError(
          fmt::format("{}: its memory at {} cannot be shown to other processes: {}; use "
                      "MEGATRON_PEER_COPIES=off (NCCL)",
                      device_.str(), data, cudaGetErrorString(status)));
    }
    keep_exported(begin);
    found = exported_.emplace(std::pair{segment, id}, handle).first;
  }
  return {segment, id, static_cast<int64_t>(address - segment), found->second};
}

const void* ProcessLink::opened(int member, const Remote& remote) {
  if (remote.segment == 0) return nullptr;
  const std::tuple key{member, remote.segment, remote.id};
  auto found = opened_.find(key);
  if (found == opened_.end()) {
    void* data = nullptr;
    MG_CUDA(cudaSetDevice(device_.index));
    MG_CUDA(cudaIpcOpenMemHandle(&data, remote.handle, cudaIpcMemLazyEnablePeerAccess));
    found = opened_.emplace(key, static_cast<std::byte*>(data)).first;
  }
  return found->second + remote.offset;
}

void ProcessLink::begin(const Call& call, cudaStream_t stream) {
  ++number_;
  stream_ = stream;
  if (number_ > kEntries) {
    uint64_t& last = entry(rank()).marks[static_cast<size_t>(Mark::kDone)];
    group_->wait_until(
        call, [&] { return seen(last) == number_ - kEntries; },
        [] { return fmt::format("its own GPU, which has {} calls to do", kEntries); });
  }
  mark(Mark::kReady, stream);
}

void ProcessLink::enter(const Call& call, const void* in) {
  in_ = in;
  const bool is_read =
      call.bytes() > 0 && (call.operation != Operation::kBroadcast || call.peer == rank());
  const Remote mine = is_read ? exported(in) : Remote();
  try {
    group_->enter(call, bytes_of(mine));
  } catch (...) {  // for the next user of the entry
    driver().write_value(stream_, address_of(entry(rank()).marks[static_cast<size_t>(Mark::kDone)]),
                         number_, 0);
    throw;
  }
}

const void* ProcessLink::memory(int member) {
  if (member == rank()) return in_;
  Remote theirs;
  std::memcpy(&theirs, group_->part_of(member), sizeof(theirs));
  return opened(member, theirs);
}

void ProcessLink::mark(Mark mark, cudaStream_t stream) {
  write(stream, entry(rank()).marks[static_cast<size_t>(mark)], number_);
}

void ProcessLink::wait(cudaStream_t stream, int member, Mark mark) {
  await(stream, entry(member).marks[static_cast<size_t>(mark)], number_);
}

// One call of the driver instead of one for each member.
void ProcessLink::wait_for_others(cudaStream_t stream, Mark mark) {
  waits_.clear();
  for (int member = 0; member < host_.size(); ++member) {
    if (member == rank()) continue;
    CUstreamBatchMemOpParams& wait = waits_.emplace_back();
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    wait.waitValue.address = address_of(entry(member).marks[static_cast<size_t>(mark)]);
    wait.waitValue.value64 = number_;
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  check_driver(driver().batch(stream, static_cast<unsigned>(waits_.size()), waits_.data(), 0),
               "cuStreamBatchMemOp");
}

void ProcessLink::give_up() noexcept {
  for (const Mark mark : {Mark::kReady, Mark::kMiddle, Mark::kDone}) {
    store(entry(rank()).marks[static_cast<size_t>(mark)], number_);
  }
}

void ProcessLink::abort(const std::string&) {
  const std::span<std::byte> all = group_->extra();
  for (size_t i = 0; i < all.size(); i += sizeof(uint64_t)) {
    store(*reinterpret_cast<uint64_t*>(all.data() + i), kReleased);
  }
}

Link::Sent ProcessLink::send(const Call& call, const void* data, cudaStream_t stream) {
  const Sent sent{call.peer, group_->num_posted(call.peer)};
  if (sent.number >= kMessages) {
    const Sent last{sent.receiver, sent.number - kMessages};
    group_->wait_until(
        call, [&] { return is_read(last); }, [&] { return receiver_text(call.peer); });
  }
  const Remote mine = exported(call.bytes() > 0 ? data : nullptr);
  write(stream, numbers(rank(), call.peer, sent.number).ready, sent.number + 1);
  group_->post(call, bytes_of(mine));
  return sent;
}

const void* ProcessLink::receive(const Call& call, cudaStream_t stream) {
  Remote theirs;
  received_ = group_->receive(call, std::as_writable_bytes(std::span(&theirs, 1)));
  await(stream, numbers(call.peer, rank(), received_).ready, received_ + 1);
  return opened(call.peer, theirs);
}

void ProcessLink::finish_receive(const Call& call, cudaStream_t stream) {
  write(stream, numbers(call.peer, rank(), received_).read, received_ + 1);
  group_->take(call.peer);
}

void ProcessLink::await_taken(const Call& call, Sent sent) {
  group_->wait_until(
      call, [&] { return is_taken(sent); }, [&] { return receiver_text(call.peer); });
}

// The reason why this process cannot use peer copies; empty if it can.
std::string own_problem() {
  if (peer_copies_disabled()) return "MEGATRON_PEER_COPIES=off";
  try {
    driver();
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

}  // namespace

std::unique_ptr<Link> make_process_link(Transport& host, Device device) {
  std::string problem = first_problem(host, own_problem());
  if (problem.empty()) {
    ProcessGroup::Made made = ProcessGroup::make(host, ProcessLink::extra_bytes(host.size()));
    problem = made.problem;
    if (made.group != nullptr) {
      auto link = std::make_unique<ProcessLink>(host, device, std::move(made.group));
      problem = link->try_out();
      if (problem.empty()) return link;
    }
  }
  if (host.rank() == 0) {
    debug(fmt::format("group {}: no peer copies: {}", host.membership().name, problem));
  }
  return nullptr;
}

}  // namespace megatron::comm::peer
