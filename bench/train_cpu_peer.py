"""PyTorch training of a GPT on the CPU, eager or compiled: the peer of bench/train_cpu.sh.

Prints one JSON line: tokens per second (median of the timed steps) and peak resident memory.
Usage: train_cpu_peer.py {fp32,bf16,bf16-autocast}[-compiled] [steps]
"""
import json
import resource
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, VOCAB, SEQ, MICRO = 12, 768, 12, 50304, 256, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, HEADS, HIDDEN // HEADS).unbind(2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, HIDDEN))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.position = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.word(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.word.weight)
        return F.cross_entropy(logits.view(-1, VOCAB).float(), labels.reshape(-1))


def main():
    mode = sys.argv[1]
    dtypes = mode.removesuffix("-compiled")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = Gpt()
    if dtypes == "bf16":
        model = model.to(torch.bfloat16)
    run = torch.compile(model) if dtypes != mode else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    data = torch.randint(0, VOCAB, (steps + 2, MICRO, SEQ + 1))
    seconds = []
    for batch in data:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtypes == "bf16-autocast"):
            loss = run(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    step = statistics.median(seconds[2:])
    print(json.dumps({
        "system": f"torch {torch.__version__} " + ("eager" if dtypes == mode else "compiled"), "mode": mode,
        "tokens_per_second": MICRO * SEQ / step, "step_ms": 1000 * step,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "loss": loss.item()}))


main()
