"""Compares the perplexity of a transformers folder on a dataset in `megatron score` and in transformers, in fp32.

    compare_transformers.py FOLDER PREFIX [--windows 16] [--megatron PROGRAM]

Reads windows of the model's length from the start of PREFIX.bin. Exits with 1 if the perplexities differ by
more than 1e-4 of their value.
"""

import argparse
import json
import math
import struct
import subprocess
import sys

import numpy as np
import torch
import transformers

TOLERANCE = 1e-4
DTYPES = {4: np.int32, 8: np.uint16}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("prefix")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--megatron", default="megatron")
    flags = parser.parse_args()

    model = transformers.AutoModelForCausalLM.from_pretrained(flags.folder, dtype=torch.float32).eval()
    length = model.config.max_position_embeddings
    with open(f"{flags.prefix}.idx", "rb") as file:
        _, _, code = struct.unpack("<9sQB", file.read(18))
    tokens = np.fromfile(f"{flags.prefix}.bin", DTYPES[code], flags.windows * length)
    windows = [tokens[i: i + length].tolist() for i in range(0, len(tokens) - 1, length)]

    lines = "".join(json.dumps({"ids": ids}) + "\n" for ids in windows)
    result = subprocess.run([flags.megatron, "score", "--load", flags.folder], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    ours = [value for line in result.stdout.splitlines() for value in json.loads(line)["logprobs"]]
    theirs = []
    with torch.no_grad():
        for ids in windows:
            logits = model(torch.tensor([ids])).logits[0, :-1].float()
            theirs += torch.log_softmax(logits, -1)[range(len(ids) - 1), ids[1:]].tolist()
    if len(ours) != len(theirs):
        sys.exit(f"compare_transformers.py: {len(ours)} tokens against {len(theirs)}")
    perplexities = [math.exp(-sum(values) / len(values)) for values in (ours, theirs)]
    print(f"{flags.prefix}: {len(ours)} tokens, perplexity {perplexities[0]:.5f}, in transformers {perplexities[1]:.5f}")
    sys.exit(abs(perplexities[0] / perplexities[1] - 1) > TOLERANCE)


main()
