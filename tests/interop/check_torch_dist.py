#!/usr/bin/env python3
"""Loads the torch_dist checkpoints of this program with Megatron Core, on the CPU.

Usage: check_torch_dist.py PROGRAM   (in an environment with megatron-core 0.16.1, torch, numpy and safetensors)

Eight ranks of the program (2 x 2 x 2, tensor x pipeline x data) train and save twice, as torch_dist and natively;
models and optimizers of the library then load the former and must hold the bits of the latter.
Ends with an error at the first thing that does not hold; says so if megatron-core is not installed.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/golden/megatron/data"
GOLDEN = ROOT / "tests/golden/torch_dist"
ITERATIONS = 4
MODELS = ["gpt", "llama"]  # fp32, tied, biases; bf16, untied, gated, with --use-distributed-optimizer


def words_of(name):
    words = (
        "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 64 --seq-length 32 "
        "--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 8 --lr 1e-3 --min-lr 1e-4 "
        "--lr-warmup-iters 2 --lr-decay-iters 20 --weight-decay 0.1 --clip-grad 1.0 --train-iters 4 "
        "--eval-iters 0 --split 90,5,5 --save-interval 4 --hidden-dropout 0 --attention-dropout 0 "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --device cpu"
    ).split()
    if name == "llama":
        words += (
            "--normalization RMSNorm --position-embedding-type rope --swiglu --disable-bias-linear --bf16 "
            "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights "
            "--use-distributed-optimizer"
        ).split()
    words += ["--data-path", DATA / "corpus_text_document", "--vocab-file", DATA / "vocab.json",
              "--merge-file", DATA / "merges.txt"]  # fmt: skip
    return list(map(str, words))


class Native:
    """Whole tensors of a checkpoint in this program's own format."""

    def __init__(self, folder):
        from safetensors.torch import load_file

        self.folder, self.files = folder, {}
        self.sections = json.loads((folder / "manifest.json").read_text())["sections"]
        self.load = load_file

    def tensor(self, section, name):
        import torch

        section = section if section in self.sections else "weights"  # fp32: no copies
        record = self.sections[section][name]
        whole = torch.zeros(record["shape"], dtype=getattr(torch, record["dtype"]))
        for chunk in record["chunks"]:
            file = chunk["file"]
            if file not in self.files:
                self.files[file] = self.load(str(self.folder / file))
            place = tuple(slice(o, o + n) for o, n in zip(chunk["offset"], chunk["shape"]))
            whole[place] = self.files[file][chunk["key"]]
        return whole


def is_sharded(value):
    return hasattr(value, "replica_id") and hasattr(value.data, "shape")


def expected_of(native, section, name, sharded):
    """The rank's part of a tensor of the native checkpoint."""
    import torch

    parts = sharded.build() if hasattr(sharded, "build") else [sharded]
    found = []
    for part in parts:
        offset, shape = list(part.global_offset), list(part.data.shape)
        ours = part.key if part.key == "embedding.word_embeddings.weight" else name  # of a tied copy, too
        if len(offset) > len(shape):  # all layers are one tensor
            inside = name.split("layers.")[1].split(".", 1)[1]
            ours = f"decoder.layers.{offset[0]}.{inside}"
            offset = offset[1:]
        whole = native.tensor(section, ours)
        found.append(whole[tuple(slice(o, o + n) for o, n in zip(offset, shape))])
    return torch.cat(found)


def keep_steps(optimizer):
    """PyTorch's Adam, which stands in for Apex's, has a step that this form of state leaves out."""
    set_state = optimizer._set_main_param_and_optimizer_states

    def with_step(parameter, tensors):
        held = optimizer._get_main_param_and_optimizer_states(parameter)
        set_state(parameter, {"step": held["step"].clone(), **tensors})

    optimizer._set_main_param_and_optimizer_states = with_step


def library_rank(rank, name, work, sizes, is_distributed):
    """One of tensor x pipeline x data ranks of the library, with an optimizer of the kind."""
    sys.path.insert(0, str(GOLDEN))
    import make
    import make_buckets
    import torch

    tensor, pipeline, data = sizes
    make.without_gpu()
    make.start(rank, tensor, pipeline, 29620, data=data)
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    is_llama = name == "llama"
    common = dict(
        num_layers=4, encoder_num_layers=4, hidden_size=32, ffn_hidden_size=64,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, padded_vocab_size=512,
        use_distributed_optimizer=is_distributed,
    )  # fmt: skip
    flags = make.llama_flags(**common) if is_llama else make.base_flags(**common)
    torch.manual_seed(99 + rank)  # other weights than those of the checkpoint
    model = make.model_of(flags, pipeline)
    if is_distributed:
        ddps, optimizer, scheduler = make_buckets.optimizer_of(flags, [model])
        ddp = ddps[0]
    else:
        ddp, optimizer, scheduler = make.optimizer_of(flags, model)
    folder = work / f"{name}-torch_dist" / f"iter_{ITERATIONS:07d}"
    content = dist_checkpointing.load_content_metadata(str(folder))
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    metadata = {**content, "dp_cp_group": group}
    weights = ddp.module.sharded_state_dict(metadata=metadata)
    state = {"model": weights}
    for parameter in ddp.parameters():  # PyTorch's optimizers have state to load into after a step
        parameter.main_grad.zero_()
    optimizer.step()
    state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=True, metadata=metadata)
    if (tensor, pipeline) == (2, 2):
        here = (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank())
        state["rng_state"] = ShardedObject("rng_state", None, (2, 2), here, replica_id=parallel_state.get_data_parallel_rank())
    loaded = dist_checkpointing.load(state, str(folder))
    model.load_state_dict(loaded["model"], strict=True)
    inner = getattr(optimizer, "chained_optimizers", [optimizer])[0]
    if is_distributed:
        keep_steps(inner)
    optimizer.load_state_dict(loaded["optimizer"])
    scheduler.load_state_dict(loaded["opt_param_scheduler"])

    assert loaded["iteration"] == ITERATIONS and loaded["args"].consumed_train_samples == ITERATIONS * 8
    assert loaded["args"].num_layers == 4 and loaded["checkpoint_version"] == 3.0
    assert scheduler.num_steps == ITERATIONS * 8
    if "rng_state" in state:
        assert len(loaded["rng_state"][0]["torch_rng_state"]) > 0
    native = Native(work / f"{name}-native" / f"iter_{ITERATIONS:07d}")
    parameters = dict(model.named_parameters())
    checked = 0
    for key, sharded in ddp.module.sharded_state_dict(metadata=metadata).items():
        if not is_sharded(sharded) or key not in parameters:
            continue
        parameter = parameters[key]
        assert torch.equal(parameter.data, expected_of(native, "weights", key, sharded)), key
        if is_distributed:
            try:
                place = inner._get_model_param_range_map(parameter)["param"]
            except KeyError:
                continue  # another data-parallel rank's
            held = inner._get_main_param_and_optimizer_states(parameter)
            begin, end = place.start, place.end
        else:
            main = getattr(parameter, "main_param", parameter)
            held = {"param": main.data, **inner.optimizer.state[main]}
            begin, end = 0, parameter.numel()
        assert float(held["step"]) == ITERATIONS, held["step"]
        for kind, section in (("param", "main_param"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")):
            want = expected_of(native, section, key, sharded).flatten()[begin:end]
            assert torch.equal(held[kind].data.flatten(), want), (kind, key)
            checked += 1
    assert checked > 20, checked
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        print("skipped: megatron-core is not installed")
        return
    import torch
    import torch.multiprocessing

    program = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        for name in MODELS:
            for form in ("torch_dist", "native"):
                words = [program, "launch", "--nproc-per-node", "8", "pretrain-gpt", *words_of(name), "--save",
                         str(work / f"{name}-{form}"), "--save-format", form, "--data-cache-path", str(work / "cache")]  # fmt: skip
                result = subprocess.run(words, capture_output=True, text=True)
                if result.returncode != 0:
                    sys.exit(f"{' '.join(words)}\n{result.stdout}\n{result.stderr}")
            for sizes, is_distributed in (((1, 1, 1), True), ((1, 1, 1), False), ((2, 2, 1), True), ((2, 1, 2), True)):
                ranks = sizes[0] * sizes[1] * sizes[2]
                torch.multiprocessing.spawn(library_rank, (name, work, sizes, is_distributed), nprocs=ranks)
                kind = "distributed optimizer" if is_distributed else "other optimizer"
                print(f"ok: {name} on {sizes[0]} x {sizes[1]} x {sizes[2]} ranks of the library, {kind}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
