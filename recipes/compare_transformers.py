"""Compares the perplexity of a transformers folder on a dataset in `megatron score` and in transformers, in fp32.

    compare_transformers.py FOLDER PREFIX [--windows 16] [--megatron PROGRAM]

Reads windows of the model's length from the start of PREFIX.bin. Exits with 1 if the perplexities differ by
more than 1e-4 of their value.
"""

import argparse
import math
import sys

import torch
import transformers

from perplexity import scored, windows_of

TOLERANCE = 1e-4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("prefix")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--megatron", default="megatron")
    flags = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(flags.folder, dtype=torch.float32).eval().to(device)
    windows = windows_of(flags.prefix, flags.windows, model.config.max_position_embeddings)
    ours = scored(flags.megatron, flags.folder, [{"ids": ids} for ids in windows])
    theirs = []
    with torch.no_grad():
        for ids in windows:
            logits = model(torch.tensor([ids], device=device)).logits[0, :-1].float()
            theirs += torch.log_softmax(logits, -1)[range(len(ids) - 1), ids[1:]].tolist()
    if len(ours) != len(theirs):
        sys.exit(f"compare_transformers.py: {len(ours)} tokens against {len(theirs)}")
    perplexities = [math.exp(-sum(values) / len(values)) for values in (ours, theirs)]
    print(f"{flags.prefix}: {len(ours)} tokens, perplexity {perplexities[0]:.5f}, in transformers {perplexities[1]:.5f}")
    sys.exit(abs(perplexities[0] / perplexities[1] - 1) > TOLERANCE)


main()
