"""Perplexity of a GPT on a dataset or on texts, by `megatron score`.

    perplexity.py CHECKPOINT PREFIX [--windows 16] [--length 256] [--megatron PROGRAM] [flags of megatron score]
    perplexity.py CHECKPOINT FILE.jsonl ...

Reads windows of `length` tokens from the start of PREFIX.bin, or scores each {"text": ...} of a file.
"""

import argparse
import array
import json
import math
import pathlib
import struct
import subprocess

TYPES = {4: "i", 8: "H"}


def windows_of(prefix, count, length):
    """The first `count` windows of a dataset, as lists of ids."""
    with open(f"{prefix}.idx", "rb") as file:
        _, _, code = struct.unpack("<9sQB", file.read(18))
    tokens = array.array(TYPES[code])
    with open(f"{prefix}.bin", "rb") as file:
        tokens.frombytes(file.read(count * length * tokens.itemsize))
    return [tokens[i: i + length].tolist() for i in range(0, len(tokens) - 1, length)]


def scored(program, checkpoint, lines, flags=()):
    """The log-probabilities of all tokens but the first of each text, of lines for `megatron score`."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    result = subprocess.run([program, "score", "--load", checkpoint, *flags], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return [value for line in result.stdout.splitlines() for value in json.loads(line)["logprobs"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("source")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--megatron", default="megatron")
    flags, of_score = parser.parse_known_args()
    if flags.source.endswith(".jsonl"):
        texts = pathlib.Path(flags.source).read_text(encoding="utf-8").splitlines()
        lines = [{"text": json.loads(text)["text"]} for text in texts]
    else:
        lines = [{"ids": ids} for ids in windows_of(flags.source, flags.windows, flags.length)]
    values = scored(flags.megatron, flags.checkpoint, lines, of_score)
    print(f"{' '.join(of_score) or 'as it is'}: {len(values)} tokens, perplexity {math.exp(-sum(values) / len(values)):.5f}")


if __name__ == "__main__":
    main()
