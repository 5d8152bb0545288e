#!/usr/bin/env python3
"""Seconds to convert a GPT-2 in bf16 from Hugging Face to Megatron-LM and back, beside `cp` and
`sync` of its file: one after the other, several times. Prints every run (seconds by the clock, of
the processor, peak memory with mapped pages, the machine's load), medians and ratios.

Usage: bench/convert.py [runs] [directory] [layers hidden heads]

The directory (default /tmp) needs room for five times the model. Fails when the round trip does not
give the tensors it began with, when a median is more than twice that of the copy, or when the peak
is 1 GiB or more. Before each run the result of the one before is removed and the disk is at rest,
so that all of them find the same memory free.
"""
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("MEGATRON", ROOT / "build/cpu/bin/megatron")


def write_model(folder, layers, hidden, heads):
    """Weights of a repeated block of random numbers of about 0.02."""
    vocabulary, positions = 50257, 1024
    shapes = {"transformer.wte.weight": [vocabulary, hidden],
              "transformer.wpe.weight": [positions, hidden]}
    for i in range(layers):
        layer = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            shapes[f"{layer}{norm}.weight"] = shapes[f"{layer}{norm}.bias"] = [hidden]
        for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1),
                                    ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            shapes[f"{layer}{name}.weight"] = [rows * hidden, columns * hidden]
            shapes[f"{layer}{name}.bias"] = [columns * hidden]
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = [hidden]
    header, size = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        end = size + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, end]}
        size = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(1).getrandbits
    count = 524287  # a prime, so that no row is like the one before
    block = struct.pack(f"<{count}H", *(draw(1) << 15 | 120 + draw(1) << 7 | draw(7)
                                        for _ in range(count)))
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while size > 0:
            file.write(block[:size])
            size -= len(block)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocabulary,
        "n_positions": positions, "n_embd": hidden, "n_layer": layers, "n_head": heads,
        "n_inner": 4 * hidden, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}))


def tensors(path):
    """Name -> (shape, offset, bytes) of a safetensors file."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: (entry["shape"], 8 + size + entry["data_offsets"][0],
                   entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in header.items()}


def expect_same_tensors(a, b):
    ours, theirs = tensors(a), tensors(b)
    assert ours.keys() == theirs.keys()
    with open(a, "rb") as x, open(b, "rb") as y:
        for name, (shape, offset, size) in ours.items():
            other_shape, other_offset, other_size = theirs[name]
            assert shape == other_shape and size == other_size, name
            x.seek(offset)
            y.seek(other_offset)
            # In small pieces: what this program holds counts for those that it starts.
            for begin in range(0, size, 1 << 20):
                count = min(1 << 20, size - begin)
                assert x.read(count) == y.read(count), name


def measured(command, result):
    """Seconds, processor seconds and MiB of a command, once its old result is gone."""
    if result.is_dir():
        shutil.rmtree(result)
    else:
        result.unlink(missing_ok=True)
    os.sync()
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - start
    if status != 0:
        sys.exit(f"{command} failed")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    words = sys.argv[1:]
    runs = int(words[0]) if words else 3
    parent = words[1] if len(words) > 1 else "/tmp"
    sizes = [int(word) for word in words[2:5]] or [24, 2048, 16]
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        work = pathlib.Path(directory)
        write_model(work / "hf", *sizes)
        convert = [str(PROGRAM), "convert-checkpoint", "--no-checking", "--load-dir"]
        steps = {
            "cp + sync": (["sh", "-c", 'cp "$0" "$1" && sync', work / "hf/model.safetensors",
                           work / "copy"], work / "copy"),
            "to Megatron-LM": ([*convert, work / "hf", "--save-dir", work / "megatron"],
                               work / "megatron"),
            "to Hugging Face": ([*convert, work / "megatron", "--save-dir", work / "back",
                                 "--saver", "hf"], work / "back"),
        }
        for command, result in steps.values():  # files in the cache, and something to remove
            measured(command, result)
        expect_same_tensors(work / "back/model.safetensors", work / "hf/model.safetensors")
        results = {name: [] for name in steps}
        for _ in range(runs):
            for name, (command, result) in steps.items():
                run = measured(command, result)
                results[name].append(run)
                print(f"{name}: {run[0]:.2f} s, processor {run[1]:.2f} s, {run[2]:.0f} MiB, "
                      f"load {os.getloadavg()[0]:.1f}", flush=True)
    copy = statistics.median(run[0] for run in results["cp + sync"])
    good = True
    for name, several in results.items():
        seconds = statistics.median(run[0] for run in several)
        processor = statistics.median(run[1] for run in several)
        peak = max(run[2] for run in several)
        good = good and seconds <= 2 * copy and peak < 1024
        print(f"median {name}: {seconds:.2f} s, {seconds / copy:.2f} x cp, processor "
              f"{processor:.2f} s, peak {peak:.0f} MiB")
    sys.exit(0 if good else "slower than twice the copy, or a peak of 1 GiB")


if __name__ == "__main__":
    main()
