#!/usr/bin/env python3
"""transformers' GPT-2 124M on the CPU (random weights, greedy): the peer of bench/generate_cpu.sh.

Prints one JSON line: the time between two tokens (median for one text, mean for several), and the rate
of a copy of as many bytes as the weights have, read and written.
Usage: generate_cpu_peer.py {fp32,bf16} [rows] [prompt tokens] [new tokens]
"""

import json
import statistics
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Clock:
    """A streamer that only notes when each token came."""

    def __init__(self):
        self.times = []

    def put(self, _):
        self.times.append(time.perf_counter())

    def end(self):
        pass


def copy_gb_per_second(num_bytes):
    """Bytes read and written by the fastest of some copies."""
    a = torch.ones(num_bytes // 4)
    b = torch.empty_like(a)
    best = float("inf")
    for _ in range(8):
        begin = time.perf_counter()
        b.copy_(a)
        best = min(best, time.perf_counter() - begin)
    return 2 * a.nbytes / best * 1e-9


def main():
    mode = sys.argv[1]
    rows, prompt, new = (int(x) for x in (sys.argv[2:] + ["1", "16", "64"][len(sys.argv) - 2 :]))
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    if mode == "bf16":
        model = model.to(torch.bfloat16)
    ids = torch.randint(0, 50257, (rows, prompt))
    mask = torch.ones_like(ids)

    def generated(count):
        clock = Clock()
        # transformers streams one text at a time; more are timed as a whole.
        streamer = {"streamer": clock} if rows == 1 else {}
        begin = time.perf_counter()
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
            **streamer,
        )
        return time.perf_counter() - begin, clock.times

    with torch.inference_mode():
        generated(8)
        first, _ = generated(1)
        total, times = generated(new)
    if rows == 1:
        gaps = [b - a for a, b in zip(times[1:], times[2:])]  # the first put is the prompt
        gap = statistics.median(gaps)
    else:
        gap = (total - first) / (new - 1)
    weights = sum(p.nbytes for p in model.parameters())  # the tied table counts once
    print(
        json.dumps(
            {
                "system": "transformers",
                "mode": mode,
                "threads": torch.get_num_threads(),
                "rows": rows,
                "prompt_tokens": prompt,
                "new_tokens": new,
                "first_token_ms": first * 1e3,
                "between_tokens_ms": gap * 1e3,
                "decode_tokens_per_second": rows / gap,
                "weight_bytes": weights,
                "copy_gb_per_second": copy_gb_per_second(weights),
            }
        )
    )


main()
