"""PyTorch training of a GPT-2 with the data, the order, the initial weights and the schedule of a run of
`megatron pretrain-gpt`: the peer of recipes/124m/run.sh.

    peer.py --weights HF_FOLDER --train PREFIX --cache FOLDER --seq-length 1024 --train-iters 200 ...

It reads the dataset PREFIX.bin/.idx and the index arrays that pretrain-gpt keeps in --data-cache-path, so the run
comes first, or has at least begun. --weights is a folder of `--save-format hf` with the initial weights. The
flags are those of pretrain-gpt. With --seed-offset N the weights are drawn anew and the samples are
shuffled, both by N: another run of the same training, which shows how much chance alone changes.

Each iteration appends a line to --metrics-jsonl with the keys of pretrain-gpt's, so `megatron report` compares both.
"""

import argparse
import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.attn_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.mlp_proj = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(h, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, s, h))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, vocab, positions):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        self.h = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.reshape(-1))


def load_weights(folder):
    """The model of a folder in transformers' GPT-2 format, whose linear layers are stored as [in, out]."""
    config = json.loads((folder / "config.json").read_text())
    model = Gpt(config["n_layer"], config["n_embd"], config["n_head"], config["vocab_size"], config["n_positions"])
    stored = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            stored |= {name.removeprefix("transformer."): tensors.get_tensor(name) for name in tensors.keys()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            theirs = (name.replace("attn_proj", "attn.c_proj").replace("mlp_proj", "mlp.c_proj")
                      .replace("c_attn", "attn.c_attn").replace("c_fc", "mlp.c_fc"))
            value = stored[theirs].float()
            is_linear = parameter.dim() == 2 and name.startswith("h.")
            parameter.copy_(value.T if is_linear else value)
    return model


def draw_weights(model, seed, layers):
    """Megatron-LM's initial weights: N(0, 0.02), divided by sqrt(2 layers) where a branch ends."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                deviation = 0.02 / math.sqrt(2 * layers) if "_proj" in name else 0.02
                parameter.normal_(0, deviation, generator=generator)


class Dataset:
    """Samples of seq_length + 1 tokens of PREFIX.bin in the order of a split's cached index arrays."""

    DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}

    def __init__(self, prefix, cache, split, seq_length, seed):
        with open(f"{prefix}.idx", "rb") as file:
            if file.read(9) != b"MMIDIDX\x00\x00":
                raise SystemExit(f"peer.py: {prefix}.idx is not the index of a dataset")
            np.frombuffer(file.read(8), np.uint64)  # version
            dtype = self.DTYPES[file.read(1)[0]]
            sequences = int(np.frombuffer(file.read(8), np.uint64)[0])
            file.read(8)  # documents
            self.lengths = np.frombuffer(file.read(4 * sequences), np.int32)
            self.starts = np.frombuffer(file.read(8 * sequences), np.int64) // np.dtype(dtype).itemsize
        self.tokens = np.memmap(f"{prefix}.bin", dtype, "r")
        for description in cache.glob("*-description.txt"):
            about = json.loads(description.read_text())
            if (pathlib.Path(about["dataset_path"]).resolve() == pathlib.Path(prefix).resolve() and about["index_split"] == split
                    and about["sequence_length"] == seq_length and about["random_seed"] == seed):
                break
        else:
            raise SystemExit(f"peer.py: {cache} has no index of {prefix}, {split}; start pretrain-gpt first")
        stem = str(description).removesuffix("description.txt")
        self.documents, self.samples, self.order = (np.load(f"{stem}{name}_index.npy")
                                                    for name in ("document", "sample", "shuffle"))

    def __len__(self):
        return len(self.order)

    def __getitem__(self, i):
        row = self.order[i]
        (first, begin), (last, end) = self.samples[row].tolist(), self.samples[row + 1].tolist()
        parts = []
        for place in range(first, last + 1):
            sequence = self.documents[place]
            start, length = self.starts[sequence], self.lengths[sequence]
            parts.append(self.tokens[start + (begin if place == first else 0): start + (end + 1 if place == last else length)])
        return np.concatenate(parts).astype(np.int64)


def learning_rate(flags, iteration):
    """Of the update after `iteration` updates: linear warm-up, then a cosine."""
    if iteration <= flags.lr_warmup_iters and flags.lr_warmup_iters > 0:
        return flags.lr * iteration / flags.lr_warmup_iters
    if iteration > flags.lr_decay_iters:
        return flags.min_lr
    done = (iteration - flags.lr_warmup_iters) / (flags.lr_decay_iters - flags.lr_warmup_iters)
    return flags.min_lr + (flags.lr - flags.min_lr) * 0.5 * (math.cos(math.pi * done) + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid")
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--metrics-jsonl", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=1234, help="of the run of pretrain-gpt")
    parser.add_argument("--seed-offset", type=int, default=0)
    for name, default in (("seq-length", 1024), ("micro-batch-size", 32), ("global-batch-size", 512), ("train-iters", 200),
                          ("lr-warmup-iters", 0), ("lr-decay-iters", 0), ("eval-iters", 0), ("eval-interval", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("lr", 6e-4), ("min-lr", 6e-5), ("weight-decay", 0.1), ("adam-beta2", 0.95), ("clip-grad", 1.0),
                          ("minutes", 0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    flags = parser.parse_args()
    flags.lr_decay_iters = flags.lr_decay_iters or flags.train_iters

    device = torch.device(flags.device)
    torch.manual_seed(flags.seed + flags.seed_offset)
    model = load_weights(flags.weights)
    if flags.seed_offset:
        draw_weights(model, flags.seed_offset, len(model.h))
    model.to(device)
    data = Dataset(flags.train, flags.cache, "train", flags.seq_length, flags.seed)
    valid = Dataset(flags.valid, flags.cache, "valid", flags.seq_length, flags.seed) if flags.valid else None
    order = np.arange(len(data))
    if flags.seed_offset:
        np.random.default_rng(flags.seed_offset).shuffle(order)

    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": flags.weight_decay}, {"params": others, "weight_decay": 0.0}],
                                  lr=flags.lr, betas=(0.9, flags.adam_beta2), eps=1e-8, fused=True)
    run = torch.compile(model) if flags.compile else model
    micro, batch = flags.micro_batch_size, flags.global_batch_size

    def loss_of(dataset, numbers):
        samples = torch.from_numpy(np.stack([dataset[i] for i in numbers]))
        samples = samples.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else samples
        with torch.autocast(device.type, torch.bfloat16, enabled=flags.bf16):
            return run(samples[:, :-1].contiguous(), samples[:, 1:].contiguous())

    consumed_valid = 0

    def evaluate(iteration, log):
        nonlocal consumed_valid
        total = torch.zeros((), device=device)
        with torch.no_grad():
            for _ in range(flags.eval_iters * batch // micro):
                total += loss_of(valid, [i % len(valid) for i in range(consumed_valid, consumed_valid + micro)])
                consumed_valid += micro
        loss = total.item() / (flags.eval_iters * batch // micro)
        print(json.dumps({"iteration": iteration, "lm loss validation": loss, "lm loss validation ppl": math.exp(loss)}), file=log, flush=True)

    begin = time.monotonic()
    with open(flags.metrics_jsonl, "a", encoding="utf-8") as log:
        for iteration in range(1, flags.train_iters + 1):
            start = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(flags, iteration - 1)
            total = torch.zeros((), device=device)
            for first in range((iteration - 1) * batch, iteration * batch, micro):
                loss = loss_of(data, order[first: first + micro])
                (loss * (micro / batch)).backward()
                total += loss.detach() * (micro / batch)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), flags.clip_grad)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss = total.item()
            seconds = time.monotonic() - start
            print(json.dumps({"iteration": iteration, "consumed_train_samples": iteration * batch, "elapsed_ms_per_iteration": 1000 * seconds,
                              "tokens_per_second": batch * flags.seq_length / seconds, "learning_rate": learning_rate(flags, iteration),
                              "global_batch_size": batch, "lm loss": loss, "grad_norm": norm.item()}), file=log, flush=True)
            is_last = iteration == flags.train_iters or 0 < 60 * flags.minutes < time.monotonic() - begin
            if valid and (is_last or (flags.eval_interval and iteration % flags.eval_interval == 0)):
                evaluate(iteration, log)
            if is_last:
                break


main()
