"""Compares `megatron evaluate` of a transformers folder with the same task in transformers, in fp32.

    compare_evaluate.py FOLDER WIKITEXT103|LAMBADA FILE [--megatron PROGRAM]

WIKITEXT103: perplexity of windows of the model's length that do not overlap, of the text as it stands in the file.
LAMBADA: texts whose last token is the most probable one. Exits with 1 if perplexities differ by more than 1e-4 of
their value, or the numbers of texts differ.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys

import torch
import transformers

TOLERANCE = 1e-4


def perplexity(model, tokenizer, text, length):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    total = 0.0
    for begin in range(0, len(ids) - 1, length):
        window = torch.tensor(ids[begin: begin + length + 1], device=model.device)
        logits = model(window[None, :-1]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return math.exp(total / (len(ids) - 1))


def correct(model, tokenizer, lines, length):
    count = 0
    for line in lines:
        ids = tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"][-length - 1:]
        count += model(torch.tensor([ids[:-1]], device=model.device)).logits[0, -1].argmax().item() == ids[-1]
    return count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("task", choices=("WIKITEXT103", "LAMBADA"))
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--megatron", default="megatron")
    flags = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(flags.folder, dtype=torch.float32).eval().to(device)
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags.folder)
    length = model.config.max_position_embeddings
    result = subprocess.run([flags.megatron, "evaluate", "--load", flags.folder, "--task", flags.task, "--valid-data", flags.file,
                             "--detokenizer", "none", "--overlapping-eval", str(length)], stdout=subprocess.PIPE, check=True)
    name = "ppl" if flags.task == "WIKITEXT103" else "number correct"
    ours = float(re.search(rf"\| {name}: ([0-9.E+-]+)", result.stdout.decode()).group(1))
    text = flags.file.read_text(encoding="utf-8")
    with torch.no_grad():
        if flags.task == "WIKITEXT103":
            theirs = perplexity(model, tokenizer, text, length)
            agree = abs(ours / theirs - 1) <= TOLERANCE
        else:
            theirs = correct(model, tokenizer, text.splitlines(), length)
            agree = ours == theirs
    print(f"{flags.task}, {name}: {ours:.8g}, in transformers {theirs:.8g}")
    sys.exit(not agree)


main()
