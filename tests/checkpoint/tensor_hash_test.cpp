#include "megatron/checkpoint/tensor_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/checkpoint/async_save.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/save.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "tests/checkpoint/sample_state.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kWords = "embedding.word_embeddings.weight";

// Rank `rank` of `ranks` has some rows of each tensor, or some columns of one with enough of them.
std::vector<CheckpointTensor> parts_of(const std::vector<CheckpointTensor>& whole, int rank,
                                       int ranks) {
  std::vector<CheckpointTensor> parts;
  for (const CheckpointTensor& tensor : whole) {
    const Shape& shape = tensor.whole;
    if (shape.rank() == 0 || shape[0] == 0) {
      if (rank == 0) parts.push_back(tensor);
      continue;
    }
    if (shape.rank() == 2 && tensor.name == kWords) {
      const int64_t count = shape[1] / ranks;
      const Tensor all = cast(tensor.data, DType::kFloat32);
      Tensor part({shape[0], count}, DType::kFloat32, Stream{});
      for (int64_t row = 0; row < shape[0]; ++row) {
        for (int64_t i = 0; i < count; ++i) {
          part.span<float>()[static_cast<size_t>(row * count + i)] =
              static_cast<float>(element(all, row * shape[1] + rank * count + i));
        }
      }
      parts.push_back({tensor.name, cast(part, tensor.data.dtype()), shape, {0, rank * count}});
      continue;
    }
    const int64_t begin = shape[0] * rank / ranks;
    const int64_t count = shape[0] * (rank + 1) / ranks - begin;
    std::vector<int64_t> offset(static_cast<size_t>(shape.rank()), 0);
    offset[0] = begin;
    parts.push_back({tensor.name, tensor.data.slice(begin, count), shape, offset});
  }
  return parts;
}

CheckpointState part_of_state(const CheckpointState& whole, int rank, int ranks) {
  CheckpointState part = whole;
  part.model = parts_of(whole.model, rank, ranks);
  for (auto& [section, tensors] : part.optimizer) tensors = parts_of(tensors, rank, ranks);
  return part;
}

void flip_bit(const Tensor& data, size_t bit) {
  Tensor elements = data;
  static_cast<uint8_t*>(elements.view().data)[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
}

class TensorHashTest : public testing::Test {
 protected:
  CheckpointContents opened() const { return open_checkpoint(directory_.path() / "iter_0000020"); }

  TemporaryDirectory directory_;
};

TEST_F(TensorHashTest, EveryLayoutSavesAndFindsTheSame) {
  const CheckpointState state = sample_state(20, 1);
  save_checkpoint(directory_.path(), state);
  const TensorHashes want = opened().hashes;
  ASSERT_EQ(want.size(), 3u);
  ASSERT_EQ(want.at(kWeightsSection).size(), state.model.size());
  for (const int ranks : {2, 3}) {
    const TemporaryDirectory other;
    comm::run_ranks(ranks, [&](const comm::Group& world) {
      const CheckpointState part = part_of_state(state, world.rank(), ranks);
      save_checkpoint(other.path(), part, {}, world);
      expect_stored_hashes(opened(), part, world);
    });
    const TensorHashes got = open_checkpoint(other.path() / "iter_0000020").hashes;
    for (const auto& [section, hashes] : want) {
      for (const auto& [name, hash] : hashes) {
        EXPECT_EQ(got.at(section).at(name).hash, hash.hash) << section << " " << name;
      }
    }
  }
}

TEST_F(TensorHashTest, SavingInTheBackgroundAndConvertingKeepThem) {
  const CheckpointState state = sample_state(20, 1);
  save_checkpoint(directory_.path(), state);
  const CheckpointContents contents = opened();
  const TemporaryDirectory other;
  {
    AsyncSaver saver(other.path() / "async", {}, {});
    saver.save(state);
    saver.finish();
  }
  save_checkpoint(other.path() / "converted", contents);
  for (const char* name : {"async", "converted"}) {
    const CheckpointContents got = open_checkpoint(other.path() / name / "iter_0000020");
    for (const auto& [section, hashes] : contents.hashes) {
      for (const auto& [tensor, hash] : hashes) {
        EXPECT_EQ(got.hashes.at(section).at(tensor).hash, hash.hash) << name << " " << tensor;
      }
    }
  }
}

TEST_F(TensorHashTest, EveryFlippedBitIsFoundOnEveryRank) {
  save_checkpoint(directory_.path(), sample_state(20, 1));
  comm::run_ranks(2, [&](const comm::Group& world) {
    CheckpointState state = part_of_state(sample_state(20, 1), world.rank(), 2);
    load_checkpoint(opened(), state, {.is_part = true});
    expect_stored_hashes(opened(), state, world);
    for (size_t i = 0; i < state.model.size(); ++i) {
      const std::string name = state.model[i].name;
      for (const bool is_moment : {false, true}) {
        const Tensor& data =
            is_moment ? state.optimizer.at("exp_avg")[i].data : state.model[i].data;
        if (data.numel() == 0 || name == "scale") continue;
        const size_t bit = (7919 * i) % static_cast<size_t>(8 * data.bytes());
        if (world.rank() == 1) flip_bit(data, bit);
        EXPECT_THAT(message_of<FormatError>([&] { expect_stored_hashes(opened(), state, world); }),
                    AllOf(HasSubstr("iter_0000020: 1 loaded tensors do not have the hashes"),
                          HasSubstr((is_moment ? "exp_avg of " : ": ") + name + ";"),
                          HasSubstr("--ckpt-step")));
        if (world.rank() == 1) flip_bit(data, bit);
      }
    }
  });
}

// Rows of padding come and go with the layout.
TEST_F(TensorHashTest, PaddingRowsDoNotCount) {
  CheckpointState saved = sample_state(20, 1);
  saved.args["true_vocab_size"] = int64_t{27};
  save_checkpoint(directory_.path(), saved);
  for (const int64_t rows : {27, 32, 40}) {
    CheckpointState state = blank_state();
    for (std::vector<CheckpointTensor>* tensors :
         {&state.model, &state.optimizer["main_param"], &state.optimizer["exp_avg"]}) {
      for (CheckpointTensor& tensor : *tensors) {
        if (tensor.name != kWords) continue;
        tensor = whole_tensor(kWords, zeros({rows, 6}, tensor.data.dtype(), Stream{}));
      }
    }
    load_checkpoint(opened(), state);
    expect_stored_hashes(opened(), state, {});
    for (const CheckpointTensor& tensor : state.model) {
      if (tensor.name != kWords) continue;
      flip_bit(tensor.data, 27 * 6 * 16 - 1);  // the last that counts
      EXPECT_THAT(message_of<FormatError>([&] { expect_stored_hashes(opened(), state, {}); }),
                  HasSubstr(kWords));
    }
  }
}

// Rounded numbers have other bits, and what is not loaded has no say.
TEST_F(TensorHashTest, OtherTensorsAreNotCompared) {
  save_checkpoint(directory_.path(), sample_state(20, 1));
  CheckpointState state = blank_state();
  for (CheckpointTensor& tensor : state.model) {
    tensor = whole_tensor(tensor.name, cast(tensor.data, DType::kFloat32));
  }
  load_checkpoint(opened(), state, {.optimizer = false});
  state.optimizer.clear();
  expect_stored_hashes(opened(), state, {});
  state.model.pop_back();
  state.model.front().name = "another";
  expect_stored_hashes(opened(), state, {});

  CheckpointContents older = opened();
  older.hashes.clear();  // as of versions without hashes
  expect_stored_hashes(older, blank_state(), {});
  EXPECT_THAT(message_of<FormatError>([&] { expect_stored_hashes(opened(), blank_state(), {}); }),
              HasSubstr(kWords));
}

}  // namespace
}  // namespace megatron
