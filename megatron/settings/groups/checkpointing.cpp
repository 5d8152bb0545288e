#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_checkpointing_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  CheckpointConfig& c = args.checkpoint;
  ArgMap& other = args.other;
  const ArgValue none;

  flags.group("checkpointing");
  flags.add_optional("--save", c.save, "Directory to save checkpoints in.");
  flags.add_optional("--save-interval", c.save_interval, "Iterations between checkpoints.");
  flags.add_choice(
      "--save-format", c.save_format,
      {{"native", SaveFormat::kNative},
       {"megatron", SaveFormat::kMegatron},
       {"megatron-core", SaveFormat::kMegatronCore},
       {"torch_dist", SaveFormat::kTorchDist},
       {"hf", SaveFormat::kHuggingFace}},
      "Format of --save: this program's, Megatron-LM's (two models, or torch_dist), or a "
      "Hugging Face folder without the optimizer.");
  flags
      .add_optional("--keep-last", c.keep_last,
                    "Keep only this many of the newest checkpoints; all if not given.")
      .not_zero();
  flags.add_optional("--save-retain-interval", c.save_retain_interval,
                     "Always keep checkpoints of iterations divisible by this.");
  flags
      .add_switch("--overwrite-checkpoints", c.overwrite_checkpoints,
                  "Let a run that starts at iteration 0 save into a directory with checkpoints of "
                  "another run, replacing those of equal iterations.")
      .is_listed = false;
  flags.add_switch("--no-save-optim", c.no_save_optim, "Do not save the optimizer's state.").none();
  flags.add_switch("--no-save-rng", c.no_save_rng, "Do not save the random states.").none();
  flags.add_switch("--async-save", c.async_save,
                   "Write checkpoints during training, from a copy in host memory.");
  flags.add_optional("--load", c.load, "Directory to load the latest checkpoint from.");
  flags.add_choice("--load-format", c.load_format,
                   {{"auto", LoadFormat::kAuto},
                    {"native", LoadFormat::kNative},
                    {"megatron", LoadFormat::kMegatron},
                    {"deepspeed", LoadFormat::kDeepSpeed},
                    {"hf", LoadFormat::kHuggingFace}},
                   "Format of --load; auto detects it. megatron: Megatron-LM's --ckpt-format torch "
                   "or torch_dist.");
  flags.add_optional("--ckpt-step", c.ckpt_step, "Load this iteration instead of the latest.");
  flags.add_switch("--no-load-optim", c.no_load_optim, "Do not load the optimizer's state.").none();
  flags.add_switch("--no-load-rng", c.no_load_rng, "Do not load the random states.").none();
  flags.add_switch("--finetune", c.finetune, "Load the weights only and start at iteration 0.");
  flags.add_off("--no-initialization -> perform_initialization",
                args.transformer.perform_initialization,
                "Do not draw initial weights; a checkpoint must replace them.");
  flags.add_switch("--use-checkpoint-args", c.use_checkpoint_args,
                   "Take the architecture from the checkpoint of --load.");
  flags.add_switch("--exit-on-missing-checkpoint", c.exit_on_missing_checkpoint,
                   "Fail if --load has no checkpoint, instead of starting from random weights.");

  flags.add_choice("--ckpt-format,--dist-ckpt-format", args.legacy.ckpt_format,
                   {{"torch", CkptFormat::kTorch},
                    {"torch_dist", CkptFormat::kTorchDist},
                    {"torch_dcp", CkptFormat::kTorchDcp},
                    {"fsdp_dtensor", CkptFormat::kFsdpDtensor},
                    {"zarr", CkptFormat::kZarr}},
                   "torch_dist: the same as --save-format torch_dist. Others have no effect: "
                   "--save-format is the format of --save, and that of --load is always detected.");
  flags.add_later_entry("--auto-detect-ckpt-format", T::kSwitch, other, false,
                        "The format of a loaded checkpoint is always detected.");
  flags.add_later_entry("--async-strategy", T::kText, other, "mcore", "Detail of --async-save.");
  flags.add_later_entry("--use-persistent-ckpt-worker", T::kSwitch, other, false,
                        "Detail of --async-save.");
  flags.add_later_entry("--no-ckpt-fully-parallel-save", T::kOff, other, true,
                        "Detail of distributed checkpoints.");
  flags.add_later_entry("--ckpt-fully-parallel-load", T::kSwitch, other, false,
                        "Detail of distributed checkpoints.");
  flags.add_later_entry("--ckpt-assume-constant-structure", T::kSwitch, other, false,
                        "Detail of distributed checkpoints.");
  flags.add_later_entry("--dist-ckpt-strictness", T::kText, other, "assume_ok_unexpected",
                        "Detail of distributed checkpoints.");
  flags.add_later_entry("--dist-ckpt-optim-fully-reshardable", T::kSwitch, other, false,
                        "Detail of distributed checkpoints.");
  flags.add_later_entry("--ckpt-convert-format", T::kText, other, none, "Convert while loading.",
                        "converting while loading");
  flags.add_later_entry("--ckpt-convert-save", T::kText, other, none,
                        "Directory of the converted checkpoint.", "converting while loading");
  flags
      .add_optional("--non-persistent-save-interval", c.non_persistent_save_interval,
                    "Iterations between checkpoints of --non-persistent-ckpt-type.")
      .is_listed = false;
  using N = NonPersistentType;
  flags
      .add_choice("--non-persistent-ckpt-type", c.non_persistent_ckpt_type,
                  {{"global", N::kGlobal}, {"local", N::kLocal}, {"in_memory", N::kInMemory}},
                  "local: each rank also saves its own part on its host, for restarts.")
      .none()
      .is_listed = false;
  flags
      .add_optional("--non-persistent-local-ckpt-dir", c.non_persistent_local_ckpt_dir,
                    "Directory of each host for local checkpoints; memory that `launch "
                    "--max-restarts N` keeps if not given.")
      .is_listed = false;
  flags.add_later_entry("--non-persistent-global-ckpt-dir", T::kText, other, none,
                        "Directory of --non-persistent-ckpt-type global.",
                        "--non-persistent-ckpt-type global");
  flags.add_later_entry("--non-persistent-local-ckpt-algo", T::kText, other, "fully_parallel",
                        "Detail of local checkpoints.");
  flags
      .add_switch("--replication", c.replication,
                  "Ranks keep copies of local checkpoints of ranks on other hosts.")
      .is_listed = false;
  flags
      .add_optional("--replication-jump", c.replication_jump,
                    "Distance of ranks that keep each other's copies; the ranks of a host if not "
                    "given.")
      .is_listed = false;
  flags
      .add("--replication-factor", c.replication_factor,
           "Number of ranks with the same local checkpoint, the rank itself included.")
      .is_listed = false;
  flags.add_later_entry("--pretrained-checkpoint", T::kText, other, none,
                        "Weights to start from when --load is empty.",
                        "a second source of weights");
  flags.add_later_entry("--override-ckpt-iteration", T::kInt, other, none,
                        "Iteration to count from after loading.",
                        "counting from another iteration");
  flags.add_later_entry("--use-mp-args-from-checkpoint-args", T::kSwitch, other, false,
                        "Take the parallel sizes from the checkpoint, too.",
                        "taking parallel sizes from a checkpoint");
}

}  // namespace megatron
