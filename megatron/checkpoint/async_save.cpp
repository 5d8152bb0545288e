#include "megatron/checkpoint/async_save.h"

#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/share_threads.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr int64_t kAlignment = 64;  // of a tensor in the staging buffer

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Calls f for the sections and their tensors, with the names of contents_of().
template <class F>
void for_each_section(const CheckpointState& state, const F& f) {
  f(kWeightsSection, state.model);
  for (const auto& [section, tensors] : state.optimizer) f(section, tensors);
}

}  // namespace

AsyncSaver::AsyncSaver(std::filesystem::path directory, const SaveOptions& options,
                       const comm::Group& world)
    : directory_(std::move(directory)), options_(options), world_(world) {}

AsyncSaver::~AsyncSaver() {
  if (writer_.joinable()) writer_.join();
}

// The contents of a checkpoint whose tensors are copied into the buffer.
CheckpointContents AsyncSaver::staged(const CheckpointState& state) {
  Stream stream;
  int64_t bytes = 0;
  for_each_section(state, [&](const std::string&, const std::vector<CheckpointTensor>& tensors) {
    for (const CheckpointTensor& tensor : tensors) {
      bytes += aligned(tensor.data.bytes());
      stream = tensor.data.stream();
    }
  });
  if (buffer_ == nullptr || buffer_->bytes() < bytes) {
    buffer_.reset();
    buffer_ = std::make_shared<PinnedBuffer>(bytes, stream.device);
  }
  CheckpointState rest = state;
  rest.model.clear();
  rest.optimizer.clear();
  CheckpointContents contents = contents_of(rest);
  contents.sections.clear();
  contents.hashes = hashes_of(state);
  std::byte* at = buffer_->data();
  for_each_section(
      state, [&](const std::string& section, const std::vector<CheckpointTensor>& tensors) {
        StoredSection& stored = contents.sections[section];
        for (const CheckpointTensor& tensor : tensors) {
          StoredTensor& whole = stored[tensor.name];
          whole.shape = tensor.whole;
          whole.dtype = tensor.data.dtype();
          copy_bytes(at, tensor.data.view().data, tensor.data.bytes(), tensor.data.stream());
          const ConstView view{at, tensor.data.shape(), tensor.data.dtype()};
          whole.pieces.push_back({{tensor.offset, tensor.data.shape()}, [view, buffer = buffer_] {
                                    return FileElements{view, {}, buffer};
                                  }});
          at += aligned(tensor.data.bytes());
        }
      });
  device_ = stream.device;
  copied_.emplace(device_);
  copied_->record(stream);
  return contents;
}

void AsyncSaver::save(const CheckpointState& state) {
  invariant(!is_under_way(), "only one save is under way");
  writing_ = std::make_unique<CheckpointWriting>(directory_, staged(state), options_, world_);
  is_written_ = false;
  error_ = nullptr;
  writer_ = std::thread([this] {
    comm::use_threads(1);  // leaves the other cores to training
    try {
      use_device(device_);  // otherwise the driver allocates on GPU 0
      copied_->synchronize();
      writing_->write();
    } catch (...) {
      error_ = std::current_exception();
    }
    is_written_ = true;
  });
}

std::optional<int64_t> AsyncSaver::finish_if_written() {
  if (!is_under_way()) return {};
  int32_t is_missing = is_written_ ? 0 : 1;
  comm::all_reduce({&is_missing, {1}, DType::kInt32}, comm::Reduce::kMax, world_, Stream{});
  if (is_missing != 0) return {};
  return finish();
}

std::optional<int64_t> AsyncSaver::finish() {
  if (!is_under_way()) return {};
  writer_.join();
  const std::unique_ptr<CheckpointWriting> writing = std::move(writing_);
  if (error_) std::rethrow_exception(error_);
  writing->commit();
  return writing->iteration();
}

}  // namespace megatron
