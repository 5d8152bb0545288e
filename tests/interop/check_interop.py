#!/usr/bin/env python3
"""Loads what this program writes with PyTorch and transformers, and feeds it what they write.

Usage: check_interop.py PROGRAM   (in an environment with torch, transformers and numpy)

Ends with an error at the first thing that does not hold; prints a line for each that does.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
CHECKPOINT = GOLDEN / "megatron/gpt/ckpt/iter_0000010"


def say(text):
    print(f"ok: {text}", flush=True)


def tensors_of(value, path=""):
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from tensors_of(entry, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(value):
            yield from tensors_of(entry, f"{path}/{i}")


class Stand:
    """Takes the place of Megatron-LM's enumerations, whose package is not here."""

    def __init__(self, *args):
        self.args = args


def load(path, **options):
    import types

    for name in ("megatron", "megatron.core", "megatron.core.enums"):
        module = sys.modules.setdefault(name, types.ModuleType(name))
        module.__path__ = []
    sys.modules["megatron.core.enums"].ModelType = Stand
    return torch.load(path, map_location="cpu", weights_only=False, **options)


def megatron_files(program, work):
    """Our copy of a file of Megatron-LM has the same tensors under the same keys."""
    program("convert-checkpoint", "--load-dir", CHECKPOINT, "--save-dir", work / "megatron")
    name = "mp_rank_00/model_optim_rng.pt"
    theirs = load(CHECKPOINT / name)
    ours = load(work / "megatron/iter_0000010" / name)
    for part in ("model", "optimizer"):
        want = dict(tensors_of(theirs[part]))
        got = dict(tensors_of(ours[part]))
        assert want.keys() == got.keys(), want.keys() ^ got.keys()
        for key, tensor in want.items():
            assert tensor.dtype == got[key].dtype and torch.equal(tensor, got[key]), key
    missing = [key for key in theirs if key not in ours]
    assert not missing, missing
    assert isinstance(ours["args"], argparse.Namespace)
    # What --use-checkpoint-args of core_r0.5.0 takes, and what loading compares.
    for name in ("num_layers hidden_size ffn_hidden_size seq_length num_attention_heads kv_channels "
                 "max_position_embeddings tokenizer_type padded_vocab_size num_query_groups "
                 "group_query_attention position_embedding_type add_position_embedding "
                 "use_rotary_position_embeddings rotary_percent rotary_interleaved add_bias_linear "
                 "add_qkv_bias swiglu untie_embeddings_and_output_weights apply_layernorm_1p "
                 "normalization tensor_model_parallel_size pipeline_model_parallel_size "
                 "make_vocab_size_divisible_by consumed_train_samples "
                 "consumed_valid_samples").split():
        assert getattr(ours["args"], name) == getattr(theirs["args"], name), name
    say(f"torch.load reads Megatron-LM files: {len(got)} optimizer tensors equal, args complete")

    state = ours["rng_state"][0]
    random.seed(1234)
    assert state["random_rng_state"] == random.getstate()
    numpy.random.seed(1234)
    want = numpy.random.get_state()
    assert all(numpy.array_equal(a, b) for a, b in zip(state["np_rng_state"], want))
    torch.manual_seed(1234)
    torch.set_rng_state(state["torch_rng_state"])
    drawn = torch.rand(5)
    torch.manual_seed(1234)
    assert torch.equal(drawn, torch.rand(5))
    say("random states are those of Python, numpy and PyTorch seeded with 1234")


def adam_goes_on(program, work):
    """torch.optim.AdamW takes the state and steps."""
    saved = load(work / "megatron/iter_0000010/mp_rank_00/model_optim_rng.pt")["optimizer"]
    groups = []
    for group in saved["param_groups"]:
        parameters = [torch.nn.Parameter(torch.zeros_like(saved["state"][i]["exp_avg"]))
                      for i in group["params"]]
        groups.append({"params": parameters})
    optimizer = torch.optim.AdamW(groups, foreach=False)
    optimizer.load_state_dict(saved)
    for group in optimizer.param_groups:
        for name, value in torch.optim.AdamW([torch.zeros(1)]).defaults.items():
            group.setdefault(name, value)
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    steps = {int(state["step"]) for state in optimizer.state.values()}
    assert steps == {11}, steps
    say("torch.optim.AdamW goes on from update 10")


def safe_loading(program, work):
    """Without trust, but for the plain classes that Megatron-LM itself registers."""
    torch.serialization.add_safe_globals([
        argparse.Namespace, numpy.ndarray, numpy.dtype, numpy.dtypes.UInt32DType,
        # The name of numpy 1, which numpy 2 reads too.
        (numpy._core.multiarray._reconstruct, "numpy.core.multiarray._reconstruct")])
    torch.load(work / "megatron/iter_0000010/mp_rank_00/model_optim_rng.pt", weights_only=True)
    say("torch.load(weights_only=True) reads them with the globals that Megatron-LM registers")


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits


def hugging_face(program, work):
    """from_pretrained of what we export gives the logits of what we imported."""
    for family in ("gpt2", "llama", "llama-gqa", "gpt-neox", "bloom"):
        source = GOLDEN / "hf" / family
        if not (source / "model.safetensors").exists():
            source = ROOT.parent / "shared/golden/hf" / family
        if not source.exists():
            print(f"not run: {family}, no model in {source}")
            continue
        here = work / family
        program("convert-checkpoint", "--load-dir", source, "--save-dir", here / "native",
                "--saver", "native")
        program("convert-checkpoint", "--load-dir", here / "native", "--save-dir", here / "hf",
                "--saver", "hf", "--max_shard_size", "100KB")
        chain = "native"
        if family in ("gpt2", "llama", "llama-gqa"):
            layers = transformers.AutoConfig.from_pretrained(source).num_hidden_layers
            program("convert-checkpoint", "--load-dir", source, "--save-dir", here / "megatron",
                    "--target-tensor-parallel-size", 2, "--target-pipeline-parallel-size", layers)
            program("convert-checkpoint", "--load-dir", here / "megatron", "--save-dir",
                    here / "hf2", "--saver", "hf")
            chain = f"native and Megatron-LM TP2 PP{layers}"
        want = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        ids = torch.arange(2 * 16).reshape(2, 16) % want.config.vocab_size
        expected = logits(want, ids)
        for name in ("hf", "hf2"):
            if not (here / name).exists():
                continue
            got, report = transformers.AutoModelForCausalLM.from_pretrained(
                here / name, dtype=torch.float32, output_loading_info=True)
            assert not report["missing_keys"] and not report["unexpected_keys"], report
            assert torch.equal(logits(got, ids), expected), family
        say(f"transformers: {family} through {chain} has the same logits, bit for bit")


def trained_here(program, work):
    """A run trained here, exported, predicts in transformers what it predicts here."""
    data = GOLDEN / "megatron/data"
    program("convert-checkpoint", "--load-dir", CHECKPOINT, "--save-dir", work / "export",
            "--saver", "hf", "--true-vocab-size", "512")
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "export", dtype=torch.float32)
    ids = list(range(1, 30))
    (work / "ids.jsonl").write_text(json.dumps({"ids": ids}) + "\n")
    out = program("score", "--load", CHECKPOINT, "--input", work / "ids.jsonl", "--device", "cpu",
                  "--vocab-file", data / "vocab.json", "--merge-file", data / "merges.txt")
    scored = json.loads(out.splitlines()[-1])
    rows = torch.log_softmax(logits(model, torch.tensor([ids]))[0, :-1].double(), dim=-1)
    want = rows.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    worst = (torch.tensor(scored["logprobs"], dtype=torch.float64) - want).abs().max().item()
    assert worst < 1e-5, worst
    say(f"log-probabilities of score and of transformers differ by at most {worst:.1e}")


def torch_written(program, work):
    """Files that torch.save writes in both formats are read here."""
    theirs = load(CHECKPOINT / "mp_rank_00/model_optim_rng.pt")
    theirs["args"].model_type = None
    for name, zip_file in (("zip", True), ("stream", False)):
        folder = work / f"torch-{name}/iter_0000010/mp_rank_00"
        folder.mkdir(parents=True)
        torch.save(theirs, folder / "model_optim_rng.pt", _use_new_zipfile_serialization=zip_file)
        program("convert-checkpoint", "--load-dir", folder.parent, "--save-dir",
                work / f"torch-{name}-back")
        back = load(work / f"torch-{name}-back/iter_0000010/mp_rank_00/model_optim_rng.pt")
        want = dict(tensors_of(theirs["model"]))
        got = dict(tensors_of(back["model"]))
        assert all(torch.equal(tensor, got[key]) for key, tensor in want.items())
    say("torch.save's zip files and its stream of before 1.6 are read")


def flat_optimizer(program, work):
    """distrib_optim.pt: parameters one behind the other, the last registered first."""
    program("convert-checkpoint", "--load-dir", CHECKPOINT, "--save-dir", work / "flat",
            "--use_distributed_optimizer", "--target_data_parallel_size", 7)
    folder = work / "flat/iter_0000010/mp_rank_00"
    saved = load(folder / "model_optim_rng.pt")
    flat = load(folder / "distrib_optim.pt")
    weights = [tensor for _, tensor in tensors_of(saved["model"])]  # as registered
    want = torch.cat([tensor.flatten() for tensor in reversed(weights)])
    buffers = flat[0][torch.float32]
    (padded,), (numel,) = (flat[key][0][torch.float32]
                           for key in ("per_bucket_numel", "per_bucket_numel_unpadded"))
    assert numel == want.numel() and padded % 7 == 0 and padded - numel < 7
    assert torch.equal(buffers["param"][0][:numel], want)
    # The same moments as beside the weights, where ids follow the groups.
    state = load(CHECKPOINT / "mp_rank_00/model_optim_rng.pt")["optimizer"]["state"]
    for kind in ("param", "exp_avg", "exp_avg_sq"):
        assert buffers[kind][0].dtype == torch.float32 and buffers[kind][0].numel() == padded
        if kind != "param":
            sums = torch.stack([entry[kind].double().sum() for entry in state.values()])
            assert torch.isclose(buffers[kind][0].double().sum(), sums.sum(), rtol=1e-12)
    groups = saved["optimizer"]["optimizer"]["param_groups"]
    assert saved["optimizer"]["optimizer"].keys() == {"param_groups"}
    assert all("params" not in group and group["step"] == 10 for group in groups)
    say(f"distrib_optim.pt: {numel} elements a kind in one bucket, {padded} with padding")


def torch_weights(program, work):
    """pytorch_model.bin, whole and in shards, as torch.save and as we write it."""
    source = GOLDEN / "hf/gpt2"
    want = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ids = torch.arange(2 * 16).reshape(2, 16) % want.config.vocab_size
    expected = logits(want, ids)
    # Theirs, as save_pretrained(safe_serialization=False) wrote it: tied weights twice.
    state = want.state_dict()
    names = list(state)
    for name, parts in (("whole", [names]), ("shards", [names[:20], names[20:]])):
        folder = work / f"bin-{name}"
        folder.mkdir()
        (folder / "config.json").write_text((source / "config.json").read_text())
        files = ["pytorch_model.bin"] if len(parts) == 1 else [
            f"pytorch_model-{i + 1:05}-of-{len(parts):05}.bin" for i in range(len(parts))]
        for file, part in zip(files, parts):
            torch.save({key: state[key] for key in part}, folder / file)
        if len(parts) > 1:
            index = {"metadata": {"total_size": 0},
                     "weight_map": {key: f for f, part in zip(files, parts) for key in part}}
            (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        program("convert-checkpoint", "--load-dir", folder, "--save-dir", work / f"back-{name}",
                "--saver", "hf")
        got = transformers.AutoModelForCausalLM.from_pretrained(work / f"back-{name}",
                                                                dtype=torch.float32)
        assert torch.equal(logits(got, ids), expected), name
    # Ours.
    for name, size in (("whole", "10GB"), ("shards", "100KB")):
        here = work / f"ours-{name}"
        program("convert-checkpoint", "--load-dir", source, "--save-dir", here, "--saver", "hf",
                "--no-safe-serialization", "--max_shard_size", size)
        files = sorted(here.glob("pytorch_model*.bin"))
        assert (len(files) > 1) == (name == "shards"), files
        merged = {}
        for file in files:
            merged.update(torch.load(file, weights_only=True))
        for key, tensor in merged.items():
            assert torch.equal(tensor, state[key]), key
        got, report = transformers.AutoModelForCausalLM.from_pretrained(
            here, dtype=torch.float32, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"], report
        assert torch.equal(logits(got, ids), expected), name
    say("pytorch_model.bin, whole and in shards: theirs are read here, ours are read there")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    binary = pathlib.Path(sys.argv[1]).resolve()

    def program(*words):
        result = subprocess.run([binary, *map(str, words)], capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}\n{result.stderr}")
        return result.stdout

    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, "
          f"numpy {numpy.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        for check in (megatron_files, adam_goes_on, safe_loading, hugging_face, trained_here,
                      torch_written, flat_optimizer, torch_weights):
            check(program, work)


if __name__ == "__main__":
    main()
