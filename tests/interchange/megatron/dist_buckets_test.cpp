#include "megatron/interchange/megatron/dist_buckets.h"

#include <gmock/gmock.h>

#include <fstream>
#include <memory>

#include "megatron/core/crc32c.h"
#include "megatron/core/file.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/reader.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

// State in ranks' buffers that Megatron Core saved (tests/golden/torch_dist): buckets on 2 x 2
// ranks (tensor x data), stages on 2 x 2 (pipeline x data) with two chunks of each.
namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path dist_buckets_golden(const std::string& name) {
  return source_path("tests/golden/torch_dist/" + name);
}

struct Golden {
  const char* name;
  const char* iteration;
  int64_t step;
};

class DistBucketsTest : public testing::TestWithParam<Golden> {
 protected:
  fs::path folder() const { return dist_buckets_golden(GetParam().name); }
  fs::path directory() const { return folder() / GetParam().iteration; }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DistBucketsTest,
                         testing::Values(Golden{"buckets", "iter_0000010", 10},
                                         Golden{"stages", "iter_0000002", 2}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(DistBucketsTest, HasTheBitsThatTheOptimizerHeld) {
  const CheckpointContents contents = open_megatron_checkpoint(directory());
  EXPECT_EQ(contents.optimizer_problem, "");
  EXPECT_EQ(contents.scalars.at("optimizer").at("step"), ArgValue(GetParam().step));
  std::ifstream expected(folder() / "expected.txt");
  size_t found = 0;
  std::string kind;
  std::string key;
  int64_t layer = 0;
  for (uint32_t checksum = 0; expected >> kind >> key >> layer >> checksum; ++found) {
    const size_t at = key.find("layers.");
    if (at != std::string::npos) key.insert(at + 7, "0.");
    const auto name = find_megatron_name(ModelKind::kGpt, key);
    ASSERT_TRUE(name) << key;
    const StoredSection& section =
        contents.sections.at(kind == "param" ? kMainParamSection : kind.c_str());
    const Tensor tensor =
        read_whole(section.at(name->layer ? with_layer(name->ours, layer) : name->ours));
    const auto* bytes = static_cast<const std::byte*>(tensor.view().data);
    EXPECT_EQ(tensor.dtype(), DType::kFloat32);
    EXPECT_EQ(crc32({bytes, static_cast<size_t>(tensor.numel()) * 4}), checksum)
        << kind << " " << key << " " << layer;
  }
  EXPECT_EQ(found, 3 * contents.sections.at(kWeightsSection).size());
}

TEST_P(DistBucketsTest, MainParametersRoundToTheWeights) {
  const CheckpointContents contents = open_megatron_checkpoint(directory());
  for (const auto& [name, stored] : contents.sections.at(kWeightsSection)) {
    const Tensor main = read_whole(contents.sections.at(kMainParamSection).at(name));
    expect_identical(cast(main, stored.dtype), read_whole(stored), name);
  }
}

// Buckets that disagree with the model's parameters are skipped and reported.
class DamagedBucketsTest : public testing::Test {
 protected:
  DamagedBucketsTest() { fs::copy(dist_buckets_golden("buckets/iter_0000010"), directory_); }

  // Replaces bytes of a file by as many.
  void replace(const char* file, const std::string& from, const std::string& to) const {
    ASSERT_EQ(from.size(), to.size());
    std::string text = read_text(directory_ / file);
    size_t count = 0;
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size(), ++count) {
      text.replace(at, from.size(), to);
    }
    ASSERT_GT(count, 0u) << from;
    std::ofstream(directory_ / file, std::ios::binary) << text;
  }
  std::string problem() const {
    const CheckpointContents contents = open_megatron_checkpoint(directory_);
    EXPECT_FALSE(contents.has_optimizer());
    EXPECT_EQ(contents.sections.at(kWeightsSection).size(), 16u);
    return contents.optimizer_problem;
  }

  const TemporaryDirectory temporary_;
  const fs::path directory_ = temporary_.path() / "checkpoint";
};

TEST_F(DamagedBucketsTest, NamesTheBucketThatIsMissing) {
  replace(".metadata", "dp_group_idx_1.gbuf_idx_0", "dp_group_idx_3.gbuf_idx_0");
  EXPECT_THAT(problem(), HasSubstr("dp_group_idx_1.gbuf_idx_0 of param is not there: it belongs "
                                   "to the ranks that saved it; save it with "));
}

TEST_F(DamagedBucketsTest, ComparesMainParametersWithWeights) {
  // The buffers of the two tensor-parallel ranks change places.
  replace(".metadata", "dp_group_idx_0.gbuf", "dp_group_idx_9.gbuf");
  replace(".metadata", "dp_group_idx_1.gbuf", "dp_group_idx_0.gbuf");
  replace(".metadata", "dp_group_idx_9.gbuf", "dp_group_idx_1.gbuf");
  EXPECT_THAT(problem(), HasSubstr("does not round to the weight"));
}

// Settings that are not those of the ranks that saved it.
TEST_F(DamagedBucketsTest, TriesTheOrderOfBothKindsOfLayers) {
  const auto checkpoint = std::make_shared<const DistCheckpoint>(directory_);
  const MegatronCheckpoint same(directory_);
  ArgMap args = same.args();
  EXPECT_EQ(args.at("transformer_impl"), ArgValue("local"));
  args["transformer_impl"] = "transformer_engine";
  const CheckpointContents contents = dist_contents(checkpoint, args);
  const CheckpointContents want = same.contents();
  ASSERT_EQ(contents.optimizer_problem, "");
  for (const auto& [name, tensor] : want.sections.at("exp_avg")) {
    expect_identical(read_whole(contents.sections.at("exp_avg").at(name)), read_whole(tensor));
  }
}

TEST_F(DamagedBucketsTest, ComparesSizesAndPiecesWithParameters) {
  const auto checkpoint = std::make_shared<const DistCheckpoint>(directory_);
  ArgMap args = MegatronCheckpoint(directory_).args();
  args["tensor_model_parallel_size"] = int64_t{1};
  EXPECT_THAT(
      dist_contents(checkpoint, args).optimizer_problem,
      HasSubstr("dp_group_idx_0.gbuf_idx_0 of param does not have the sizes of the model's"));
  args["tensor_model_parallel_size"] = int64_t{3};
  EXPECT_THAT(dist_contents(checkpoint, args).optimizer_problem, HasSubstr("3 tensor parallel"));
  args["tensor_model_parallel_size"] = int64_t{0};
  EXPECT_THAT(dist_contents(checkpoint, args).optimizer_problem, HasSubstr("are not positive"));
}

}  // namespace
}  // namespace megatron
