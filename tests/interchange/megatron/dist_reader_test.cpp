#include "megatron/interchange/megatron/dist_reader.h"

#include <gmock/gmock.h>

#include <fstream>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/reader.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/interchange/stored_logits.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

// Checkpoints of torch_dist that Megatron Core saved (tests/golden/torch_dist): gpt on one rank,
// all layers merged; llama on 2 x 2 ranks, each layer under its number.
namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path dist_reader_golden(const std::string& name) {
  return source_path("tests/golden/torch_dist/" + name);
}

class DistModelTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, DistModelTest, testing::Values("gpt", "llama"));

TEST_P(DistModelTest, LogitsAreThoseOfMegatronCore) {
  const CheckpointSource source = find_source(dist_reader_golden(GetParam()), 0, true);
  EXPECT_EQ(source.format(), CheckpointFormat::kMegatron);
  EXPECT_EQ(source.kind(), ModelKind::kGpt);
  const CheckpointContents& contents = source.contents();
  const SafetensorsFile expected(dist_reader_golden(GetParam()) / "expected.safetensors");
  const Tensor want = copy_of(expected.at("logits"));  // [b, s, v]
  const Tensor got =
      stored_logits(contents, config_of(source, contents), copy_of(expected.at("tokens")));
  ASSERT_EQ(got.shape(), (Shape{want.size(1), want.size(0), want.size(2)}));
  for (int64_t b = 0; b < want.size(0); ++b) {
    for (int64_t s = 0; s < want.size(1); ++s) {
      for (int64_t v = 0; v < want.size(2); ++v) {
        const double wanted = element(want, (b * want.size(1) + s) * want.size(2) + v);
        const double found = element(got, (s * want.size(0) + b) * want.size(2) + v);
        ASSERT_NEAR(found, wanted, 2e-5) << b << " " << s << " " << v;
      }
    }
  }
}

TEST_P(DistModelTest, WeightsAreThoseOfMegatronCore) {
  const CheckpointSource source = find_source(dist_reader_golden(GetParam()), 0, true);
  const StoredSection& weights = source.contents().sections.at(kWeightsSection);
  const SafetensorsFile expected(dist_reader_golden(GetParam()) / "expected.safetensors");
  size_t found = 0;
  for (const SafetensorsFile::Entry& tensor : expected.tensors()) {
    const auto name = find_megatron_name(ModelKind::kGpt, tensor.spec.name);
    if (!name) continue;  // tokens and logits
    const std::string ours = name->layer ? with_layer(name->ours, *name->layer) : name->ours;
    const Tensor weight = read_whole(weights.at(ours));
    expect_identical(cast(weight, DType::kFloat32), copy_of(tensor.view), ours);
    ++found;
  }
  EXPECT_EQ(found, weights.size());
}

TEST_P(DistModelTest, MainParametersAreTheWeightsBeforeRounding) {
  const CheckpointContents contents =
      find_source(dist_reader_golden(GetParam()), 0, true).contents();
  for (const auto& [name, stored] : contents.sections.at(kWeightsSection)) {
    const Tensor main = read_whole(contents.sections.at(kMainParamSection).at(name));
    EXPECT_EQ(main.dtype(), DType::kFloat32);
    expect_identical(cast(main, stored.dtype), read_whole(stored), name);
    for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
      EXPECT_EQ(contents.sections.at(kind).at(name).shape, stored.shape) << name;
    }
  }
  EXPECT_EQ(contents.sections.size(), 4u);
  EXPECT_EQ(contents.optimizer_problem, "");
}

TEST(DistReaderTest, ReadsProgressAndSchedule) {
  const CheckpointContents gpt = find_source(dist_reader_golden("gpt"), 0, true).contents();
  EXPECT_EQ(gpt.iteration, 10);
  EXPECT_EQ(gpt.consumed_train_samples, 80);
  EXPECT_EQ(gpt.scalars.at("optimizer").at("step"), ArgValue(int64_t{10}));
  EXPECT_EQ(gpt.scalars.at("opt_param_scheduler").at("num_steps"), ArgValue(int64_t{80}));
  EXPECT_EQ(gpt.scalars.at("progress").at("floating_point_operations"), ArgValue(123456789.0));
  EXPECT_EQ(gpt.scalars.at("rng").at("seed"), ArgValue(int64_t{1234}));
  const CheckpointContents llama = find_source(dist_reader_golden("llama"), 0, true).contents();
  EXPECT_EQ(llama.iteration, 2);
  EXPECT_EQ(llama.scalars.at("optimizer").at("step"), ArgValue(int64_t{2}));
  EXPECT_EQ(llama.args.at("num_query_groups"), ArgValue(int64_t{2}));
}

// A checkpoint to damage.
class DamagedDistTest : public testing::Test {
 protected:
  DamagedDistTest() { fs::copy(dist_reader_golden("gpt/iter_0000010"), directory_); }

  fs::path file(const char* name) const { return directory_ / name; }
  void write(const char* name, const std::string& text) const {
    std::ofstream(file(name), std::ios::binary) << text;
  }
  // Replaces words in .metadata, by such of the same length.
  void rename(const std::string& from, const std::string& to) const {
    ASSERT_EQ(from.size(), to.size());
    std::string text = read_text(file(".metadata"));
    size_t count = 0;
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size(), ++count) {
      text.replace(at, from.size(), to);
    }
    ASSERT_GT(count, 0u);
    write(".metadata", text);
  }
  CheckpointContents read() const { return open_megatron_checkpoint(directory_); }
  std::string error() const {
    try {
      const CheckpointContents contents = read();
      for (const auto& [section, tensors] : contents.sections) {
        for (const auto& [name, tensor] : tensors) read_whole(tensor);
      }
    } catch (const Error& found) {
      return found.what();
    }
    return "";
  }

  const TemporaryDirectory temporary_;
  const fs::path directory_ = temporary_.path() / "checkpoint";
};

TEST_F(DamagedDistTest, NamesTheMissingFile) {
  fs::remove(file("__0_1.distcp"));
  EXPECT_THAT(error(), HasSubstr("__0_1.distcp: is missing, but .metadata names it; copy the whole "
                                 "directory"));
}

TEST_F(DamagedDistTest, NamesTheFileThatIsCutOff) {
  fs::resize_file(file("__0_1.distcp"), 1000);
  EXPECT_THAT(error(), HasSubstr("__0_1.distcp: has 1000 bytes, but a piece of "));
}

TEST_F(DamagedDistTest, RefusesPiecesThatAreOthers) {
  rename("__0_1.distcp", "__0_0.distcp");
  EXPECT_THAT(error(), HasSubstr("__0_0.distcp: "));
}

TEST_F(DamagedDistTest, ChecksTheBytesOfPieces) {
  std::string text = read_text(file("__0_0.distcp"));
  text[text.size() / 2] ^= 0x10;  // within the elements of the embedding's state
  write("__0_0.distcp", text);
  EXPECT_THAT(error(), HasSubstr("do not have their checksum"));
}

TEST_F(DamagedDistTest, RefusesDamagedMetadata) {
  fs::resize_file(file(".metadata"), 20000);
  EXPECT_THAT(error(), HasSubstr("copy the whole directory again"));
  fs::remove(file(".metadata"));
  EXPECT_THAT(error(), HasSubstr(".metadata: is missing"));
  write(".metadata", "\x80\x02}q\x01.");
  EXPECT_THAT(error(), HasSubstr("holds no Metadata of torch.distributed.checkpoint"));
}

TEST_F(DamagedDistTest, DoesNotLeaveItsDirectory) {
  rename("__0_1.distcp", "../1.distcpx");
  EXPECT_THAT(error(), HasSubstr("names the file \"../1.distcpx\", which is not in the directory"));
}

TEST_F(DamagedDistTest, NamesTensorsThatNoModelHas) {
  rename("decoder.final_layernorm.bias", "decoder.final_layernorm.bios");
  EXPECT_THAT(error(), HasSubstr("a GPT of this program has no decoder.final_layernorm.bios"));
}

TEST_F(DamagedDistTest, WantsTheCommonState) {
  fs::remove(file("common.pt"));
  EXPECT_THAT(error(), HasSubstr("has neither common.pt nor an object common_state"));
}

TEST_F(DamagedDistTest, RefusesOtherFormatsByName) {
  write("metadata.json", R"({"sharded_backend": "zarr", "sharded_backend_version": 1})");
  EXPECT_THAT(error(), HasSubstr("is a checkpoint of the format zarr, which is not read"));
  fs::remove(file("metadata.json"));
  EXPECT_THAT(error(), HasSubstr("torch_dcp and fsdp_dtensor"));
}

// Weights can be had without the optimizer's state.
TEST_F(DamagedDistTest, LeavesOutStateOfBuffers) {
  rename("optimizer.state.exp_avg.", "optimizer.buffr.exp_avg.");
  const CheckpointContents contents = read();
  EXPECT_FALSE(contents.has_optimizer());
  EXPECT_THAT(contents.optimizer_problem, HasSubstr("--dist-ckpt-optim-fully-reshardable there"));
  EXPECT_EQ(error(), "");
}

}  // namespace
}  // namespace megatron
