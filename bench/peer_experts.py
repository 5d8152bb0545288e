"""Times PyTorch on a GPT with experts: the first model of docs/performance/experts.md.

A well-tuned program for one GPU: grouped products (torch._grouped_mm), scaled_dot_product_attention,
torch.compile, fused AdamW; weights, gradients and moments in bf16. Dropless, with an auxiliary loss.

    python3 bench/peer_experts.py [--micro-batch-size N] [--steps N]
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_float32_matmul_precision("high")
LAYERS, HIDDEN, HEADS, HEAD, EXPERTS, INNER, TOPK = 16, 2048, 16, 128, 64, 1024, 8
LENGTH, VOCABULARY, BATCH = 4096, 50304, 16


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.fc1 = nn.Parameter(torch.empty(EXPERTS, HIDDEN, 2 * INNER))
        self.fc2 = nn.Parameter(torch.empty(EXPERTS, INNER, HIDDEN))

    def forward(self, x):
        tokens = x.shape[0]
        scores = torch.softmax(self.router(x).float(), -1)
        weights, ids = torch.topk(scores, TOPK, dim=-1)
        flat = ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        ones = torch.ones_like(flat, dtype=torch.int32)
        counts = torch.zeros(EXPERTS, dtype=torch.int32, device=x.device).scatter_add_(0, flat, ones)
        offsets = torch.cumsum(counts, 0).to(torch.int32)
        token = order // TOPK
        gate, up = torch._grouped_mm(x[token], self.fc1, offs=offsets).chunk(2, dim=-1)
        inside = F.silu(gate) * up * weights.reshape(-1)[order, None].to(x.dtype)
        y = torch._grouped_mm(inside, self.fc2, offs=offsets)
        sums = torch.zeros(tokens, HIDDEN, dtype=torch.float32, device=x.device)
        sums = sums.index_add_(0, token, y.float())
        balance = EXPERTS * (scores.mean(0) * counts.float() / (tokens * TOPK)).sum()
        return sums.to(x.dtype), balance


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HEADS * HEAD, bias=False)
        self.proj = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.experts = Experts()

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, HEADS, HEAD).transpose(1, 2) for t in (q, k, v))

        def rotated(t):
            first, second = t.chunk(2, -1)
            return torch.cat((-second, first), -1) * sin + t * cos

        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, -1))
        y, balance = self.experts(self.norm2(x).reshape(batch * length, HIDDEN))
        return x + y.view_as(x), balance


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        rates = 1e4 ** (-torch.arange(0, HEAD, 2).float() / HEAD)
        angles = torch.outer(torch.arange(LENGTH).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos().bfloat16())
        self.register_buffer("sin", angles.sin().bfloat16())

    def forward(self, x, labels):
        t, balance = self.words(x), 0
        for block in self.blocks:
            t, more = block(t, self.cos, self.sin)
            balance = balance + more
        logits = self.head(self.norm(t)).view(-1, VOCABULARY).float()
        return F.cross_entropy(logits, labels.view(-1)) + 0.01 * balance / LAYERS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Gpt()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model)
    microbatches = BATCH // args.micro_batch_size
    shape = (microbatches, args.micro_batch_size, LENGTH)
    x, labels = (torch.randint(0, 50257, shape, device="cuda") for _ in range(2))

    def step():
        for i in range(microbatches):
            (compiled(x[i], labels[i]) / microbatches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(2):
        step()
    seconds = []
    for _ in range(args.steps):
        torch.cuda.synchronize()
        began = time.time()
        step()
        torch.cuda.synchronize()
        seconds.append(time.time() - began)
    median = sorted(seconds)[len(seconds) // 2]
    print(f"torch {torch.__version__}: {BATCH * LENGTH / median:,.0f} tokens/s, {median * 1e3:.0f} ms,"
          f" {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
