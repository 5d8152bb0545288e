#include <filesystem>

#include "tests/program/layout_runs.h"

// --num-distributed-optimizer-instances: data-parallel ranks in groups that each hold everything.
namespace megatron::program {
namespace {

class InstancesTest : public LayoutTest {};

TEST_F(InstancesTest, EveryLayoutTrainsAsOneRank) {
  expect_trains_as_one_rank(
      {{.dp = 2, .distributed_optimizer = true, .instances = 2},
       {.dp = 4, .distributed_optimizer = true, .instances = 2},
       {.dp = 8, .distributed_optimizer = true, .overlap = true, .instances = 2},
       {.dp = 8, .distributed_optimizer = true, .overlap = true, .instances = 4},
       {.dp = 4, .zero_stage = 2, .instances = 2},
       {.dp = 8, .zero_stage = 3, .instances = 4},
       {.tp = 2, .dp = 4, .sequence_parallel = true, .zero_stage = 3, .instances = 2},
       {.tp = 2, .dp = 4, .distributed_optimizer = true, .overlap = true, .instances = 2},
       {.dp = 2, .cp = 2, .zero_stage = 2, .instances = 2},
       {.dp = 4, .distributed_optimizer = true, .cp = 2, .instances = 2},
       {.pp = 2, .dp = 4, .distributed_optimizer = true, .overlap = true, .instances = 2},
       {.tp = 2,
        .pp = 2,
        .dp = 2,
        .sequence_parallel = true,
        .distributed_optimizer = true,
        .instances = 2}});
}

TEST_F(InstancesTest, TheOtherOrderOfRanksTrainsAsOneRank) {
  const Flags flags = model(false).with("--eval-iters", "0");
  const Layout layout{.pp = 2, .dp = 4, .distributed_optimizer = true, .instances = 2};
  expect_equal(trained(flags.with("--use-tp-pp-dp-mapping"), layout, "other"),
               trained(flags, {}, "one"), "other");
}

// Two runs, sums beside the backward pass or after it, gathers beside the forward pass, and the
// state on the host.
TEST_F(InstancesTest, NothingButTheOrderOfRanksChangesABit) {
  const Flags flags = model(false).with("--bf16").with("--ddp-bucket-size", "20000");
  const Layout plain{.tp = 2, .dp = 4, .distributed_optimizer = true, .instances = 2};
  Layout overlapped = plain;
  overlapped.overlap = true;
  const std::vector<Metrics> want = trained(flags, overlapped, "overlapped");
  ASSERT_GE(want.size(), 20u);
  EXPECT_EQ(trained(flags, overlapped, "again"), want);
  EXPECT_EQ(trained(flags.with("--overlap-param-gather"), overlapped, "gathers"), want);
  EXPECT_EQ(trained(flags.with("--optimizer-cpu-offload"), overlapped, "offloaded"), want);
  expect_same_bits(trained(flags, plain, "plain"), want, "plain");
}

// An overflow under the loss scale is skipped by all instances.
TEST_F(InstancesTest, SixteenBitsFollowOneInstance) {
  for (const char* const dtype : {"--bf16", "--fp16"}) {
    const Flags flags = model(false).with(dtype).with("--eval-iters", "0");
    const Layout one{.dp = 4, .distributed_optimizer = true};
    const std::vector<Metrics> want = trained(flags, one, std::string(dtype) + "_one");
    for (const int stage : {1, 2, 3}) {
      const Layout layout{.dp = 4, .zero_stage = stage, .instances = 2};
      const std::vector<Metrics> got = trained(flags, layout, dtype + name_of(layout));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        for (const auto& [key, value] : want[i]) {  // gradients are rounded at other places
          EXPECT_NEAR(got[i].at(key), value, 5e-3 * std::abs(value)) << dtype << key << i;
        }
      }
    }
  }
}

TEST_F(InstancesTest, ACheckpointIsGoneOnFromWithAnyOtherNumber) {
  const std::vector<Metrics> want = trained(model(true), {}, "straight");
  const std::vector<Layout> layouts = {
      {},
      {.dp = 4, .distributed_optimizer = true},
      {.dp = 4, .distributed_optimizer = true, .overlap = true, .instances = 2},
      {.dp = 8, .zero_stage = 3, .instances = 4},
      {.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 2, .instances = 2}};
  for (const Layout& saving : layouts) {
    const std::string folder = path("saved_" + name_of(saving)).string();
    const std::vector<Metrics> begun =
        trained(until_ten(model(true), folder), saving, "begun_" + name_of(saving));
    const std::vector<Metrics> straight = trained(model(true), saving, "all_" + name_of(saving));
    for (const Layout& loading : layouts) {
      if (saving.instances == 1 && loading.instances == 1) continue;
      const std::string name = name_of(saving) + "_to_" + name_of(loading);
      std::vector<Metrics> all = begun;
      for (const Metrics& line : trained(model(true).with("--load", folder), loading, name)) {
        all.push_back(line);
      }
      if (name_of(saving) == name_of(loading)) {
        EXPECT_EQ(all, straight) << name;
      } else {
        expect_equal(all, want, name);
      }
    }
  }
}

// Each rank of each instance has its own, of the tensors that it would load.
TEST_F(InstancesTest, LocalCheckpointsKeepTheBits) {
  const Flags flags = model(false).with("--bf16").with("--eval-iters", "0");
  const Layout layout{.tp = 2, .dp = 4, .zero_stage = 2, .instances = 2};
  const std::vector<Metrics> want = trained(flags, layout, "straight");
  const std::string folder = path("saved").string();
  const Flags local = flags.with("--save", folder)
                          .with("--load", folder)
                          .with("--save-interval", "1000")
                          .with("--non-persistent-ckpt-type", "local")
                          .with("--non-persistent-local-ckpt-dir", path("local").string())
                          .with("--non-persistent-save-interval", "5");
  std::vector<Metrics> all = trained(local.with("--exit-interval", "10"), layout, "begun");
  std::filesystem::remove_all(folder);  // the last checkpoint, which is another one
  for (const Metrics& line : trained(local, layout, "resumed")) all.push_back(line);
  EXPECT_EQ(all, want);
}

}  // namespace
}  // namespace megatron::program
