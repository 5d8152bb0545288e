#include "megatron/formats/torch_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "megatron/core/file.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/torch_writer.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using testing::HasSubstr;

// Bytes between those that are damaged: the fuzzer tries them all.
constexpr size_t kStep = 29;

class TorchFileTest : public testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }

  // {"weight": fp32 [3, 5], "bias": bf16 [7], "again": the weight, "step": 20}
  std::filesystem::path write_sample() const {
    TorchWriter writer(path("sample.pt"));
    PickleWriter& pickle = writer.pickle();
    pickle.begin_dict();
    pickle.text("weight"), writer.tensor(DType::kFloat32, {3, 5});
    pickle.text("bias"), writer.tensor(DType::kBFloat16, {7});
    pickle.text("again"), writer.same_tensor(0);
    pickle.text("empty"), writer.tensor(DType::kInt64, {0, 4});
    pickle.text("step"), pickle.integer(20);
    pickle.end_dict();
    writer.write(std::as_const(weight_).view());
    writer.write(std::as_const(bias_).view());
    writer.write(Tensor({0, 4}, DType::kInt64, Stream{}).view());
    writer.commit();
    return path("sample.pt");
  }

  static void read_everything(const std::filesystem::path& file) {
    const TorchFile torch(file);
    for (const auto& [key, value] : torch.root().entries()) {
      if (const PyTensor* tensor = value.tensor()) copy_of(torch.elements(*tensor).view);
    }
  }

  static Tensor tensor_in(const TorchFile& file, const char* key) {
    return copy_of(file.elements(*file.root().find(key)->tensor()).view);
  }

  TemporaryDirectory directory_;
  Tensor weight_ = random_normal({3, 5}, {.seed = 1});
  Tensor bias_ = random_normal({7}, {.seed = 2, .dtype = DType::kBFloat16});
};

TEST_F(TorchFileTest, ReadsBackWhatWasWritten) {
  const TorchFile file(write_sample());
  expect_identical(tensor_in(file, "weight"), weight_);
  expect_identical(tensor_in(file, "bias"), bias_);
  expect_identical(tensor_in(file, "again"), weight_);
  EXPECT_EQ(file.root().find("step")->integer(), 20);
  EXPECT_EQ(tensor_in(file, "empty").shape(), (Shape{0, 4}));
  EXPECT_TRUE(is_torch_file(file.path()));
}

TEST_F(TorchFileTest, SeveralThreadsRead) {
  const TorchFile file(write_sample());
  std::vector<Tensor> found(4);
  std::vector<std::thread> threads;
  for (Tensor& mine : found) {
    threads.emplace_back([&file, &mine] {
      tensor_in(file, "bias");
      mine = tensor_in(file, "weight");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& tensor : found) expect_identical(tensor, weight_);
}

TEST_F(TorchFileTest, WritesInParts) {
  TorchWriter writer(path("parts.pt"));
  writer.pickle().begin_dict();
  writer.pickle().text("empty"), writer.tensor(DType::kFloat32, {0});
  writer.pickle().text("weight"), writer.tensor(DType::kFloat32, {3, 5});
  writer.pickle().end_dict();
  const auto rows = [&](int64_t begin, int64_t count) {
    const Tensor part = weight_.slice(begin, count);
    writer.write_part_later({part.view(), part});
  };
  rows(0, 0);  // all of the empty one
  rows(0, 0);
  rows(0, 2);
  rows(2, 0);
  rows(2, 1);
  rows(3, 0);
  writer.commit();
  expect_identical(tensor_in(TorchFile(path("parts.pt")), "weight"), weight_);
}

TEST_F(TorchFileTest, ElementsLieAlignedInTheMapping) {
  const TorchFile file(write_sample());
  const FileElements weight = file.elements(*file.root().find("weight")->tensor());
  EXPECT_FALSE(weight.owner.defined());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weight.view.data) % 64, 0u);
}

TEST_F(TorchFileTest, GathersStridedTensors) {
  PyTensor transposed;
  transposed.storage = "0";
  transposed.storage_numel = 15;
  transposed.shape = {5, 2};
  transposed.strides = {1, 5};
  transposed.offset = 5;
  const TorchFile file(write_sample());
  const FileElements got = file.elements(transposed);
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t column = 0; column < 2; ++column) {
      EXPECT_EQ(got.view.as<float>()[row * 2 + column],
                std::as_const(weight_).span<float>()[static_cast<size_t>((column + 1) * 5 + row)]);
    }
  }
}

// The stream of torch.save(..., _use_new_zipfile_serialization=False).
TEST_F(TorchFileTest, ReadsTheStreamOfOldVersions) {
  std::string text = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
  PickleWriter system;
  system.begin_dict();
  system.text("protocol_version"), system.integer(1001);
  system.text("little_endian"), system.boolean(true);
  system.end_dict();
  text += system.finish();
  PickleWriter object;
  object.begin_dict();
  object.text("weight"), object.tensor("9401", 15, DType::kFloat32, 5, {2, 5});
  object.end_dict();
  text += object.finish();
  PickleWriter keys;
  keys.begin_list();
  keys.text("9401");
  keys.end_list();
  text += keys.finish();
  const int64_t numel = 15;
  text.append(reinterpret_cast<const char*>(&numel), sizeof(numel));
  const auto raw = bytes_of(std::as_const(weight_).view());
  text.append(reinterpret_cast<const char*>(raw.data()), raw.size());

  const TorchFile file(directory_.write("old.pt", text));
  expect_identical(tensor_in(file, "weight"), copied(weight_.slice(1, 2)));
  for (size_t size = 0; size < text.size(); size += kStep) {
    EXPECT_THROW(read_everything(directory_.write("cut.pt", text.substr(0, size))), Error) << size;
  }
}

TEST_F(TorchFileTest, NoTruncationIsRead) {
  const std::string text = read_text(write_sample());
  for (size_t size = 0; size < text.size(); size += kStep) {
    EXPECT_THROW(read_everything(directory_.write("cut.pt", text.substr(0, size))), Error) << size;
  }
}

// Either the change is found, or it was in a byte that nobody reads.
TEST_F(TorchFileTest, NoFlippedByteChangesATensor) {
  const std::string text = read_text(write_sample());
  for (size_t at = 0; at < text.size(); at += kStep) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    try {
      const TorchFile file(directory_.write("flipped.pt", damaged));
      expect_identical(tensor_in(file, "weight"), weight_);
    } catch (const Error&) {
      continue;
    }
  }
}

TEST_F(TorchFileTest, NamesTheDamage) {
  std::string text = read_text(write_sample());
  const auto raw = bytes_of(std::as_const(weight_).view());
  const std::string elements(reinterpret_cast<const char*>(raw.data()), raw.size());
  text[text.find(elements) + 3] ^= 1;
  const std::string damaged = directory_.write("damaged.pt", text);
  EXPECT_THAT(message_of<FormatError>([&] { read_everything(damaged); }),
              HasSubstr("damaged.pt: the bytes of sample/data/0 do not have their checksum"));
}

TEST_F(TorchFileTest, RefusesOtherArchives) {
  const auto archive = [&](const std::vector<std::string>& names) {
    ZipWriter writer(path("other.zip"));
    for (const std::string& name : names) writer.add(name, "x");
    writer.commit();
    return message_of<Error>([&] { TorchFile file(path("other.zip")); });
  };
  EXPECT_THAT(archive({"a/b"}), HasSubstr("has no data.pkl"));
  EXPECT_THAT(archive({"a/data.pkl", "b/data.pkl"}), HasSubstr("two pickles"));
  EXPECT_THAT(archive({"a/data.pkl", "a/data.pkl"}), HasSubstr("occurs twice"));
  EXPECT_THAT(archive({"../data.pkl"}), HasSubstr("leaves the archive's folder"));
  EXPECT_THAT(archive({"/data.pkl"}), HasSubstr("leaves the archive's folder"));
  EXPECT_THAT(archive({"a/data.pkl", "a/constants.pkl"}), HasSubstr("TorchScript"));
  EXPECT_THAT(archive({"a/data.pkl", "a/byteorder"}), HasSubstr("big-endian"));
  EXPECT_THAT(message_of<FormatError>([&] { TorchFile(directory_.write("text.pt", "hello")); }),
              HasSubstr("does not begin like a file of torch.save"));
}

// Numbers of the directory that lie: every field of 4 bytes, set to large values.
TEST_F(TorchFileTest, SurvivesAbsurdNumbers) {
  const std::string text = read_text(write_sample());
  const size_t directory = text.find("PK\x01\x02");
  for (size_t at = directory; at + 4 <= text.size(); at += kStep) {
    for (const uint32_t value : {0xffffffffu, 0x7fffffffu, 0u, static_cast<uint32_t>(at)}) {
      std::string damaged = text;
      damaged.replace(at, 4, reinterpret_cast<const char*>(&value), 4);
      try {
        read_everything(directory_.write("absurd.pt", damaged));
      } catch (const Error&) {
        continue;
      }
    }
  }
}

TEST_F(TorchFileTest, ReadsMegatronsOwn) {
  MG_NEEDS_SHARED("golden/megatron");
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(shared_data("golden/megatron"))) {
    if (entry.path().extension() != ".pt") continue;
    ++files;
    const TorchFile file(entry.path());
    EXPECT_TRUE(file.root().is_dict()) << entry.path();
    if (entry.path().filename() != "model_optim_rng.pt") continue;
    const PyValue* hidden = file.root().find_path({"args", "hidden_size"});
    ASSERT_NE(hidden, nullptr);
    EXPECT_EQ(hidden->integer(), 32);
    EXPECT_NE(file.root().find_path({"model"}), nullptr);
  }
  EXPECT_GE(files, 20);
}

}  // namespace
}  // namespace megatron
