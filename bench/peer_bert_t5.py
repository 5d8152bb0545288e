"""Times PyTorch on the shapes of `megatron bench --workload bert-large` and `t5-large`.

A plain and well-tuned program: scaled_dot_product_attention, torch.compile, fused AdamW, bf16
autocast on fp32 weights. The models are those of Megatron-LM: norms before the branches, learned
positions, biases, tied words with a bias; BERT with the head of two sentences. Attention gets the
mask of padding, of which there is none, as megatron's does.

    python3 bench/peer_bert_t5.py bert-large|t5-large [--dropout P] [--steps N] [--no-mask]
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, BATCH = 24, 1024, 16, 32
SHAPES = {  # tokens of the encoder and of the decoder, words
    "bert-large": (512, 0, 30592),
    "t5-large": (512, 128, 30720),
}


def heads(x):
    b, s, _ = x.shape
    return x.view(b, s, HEADS, -1).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dropout, causal=False):
        super().__init__()
        self.q = nn.Linear(HIDDEN, HIDDEN)
        self.kv = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.dropout, self.causal = dropout, causal

    def forward(self, x, memory, mask):
        k, v = self.kv(memory).chunk(2, dim=-1)
        y = F.scaled_dot_product_attention(
            heads(self.q(x)), heads(k), heads(v), attn_mask=mask, dropout_p=self.dropout, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class SelfAttention(nn.Module):
    """One product for queries, keys and values."""

    def __init__(self, dropout, causal):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.dropout, self.causal = dropout, causal

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(
            heads(q), heads(k), heads(v), attn_mask=mask, dropout_p=self.dropout, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, dropout, causal=False, crosses=False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention = SelfAttention(dropout, causal)
        self.norm_cross = nn.LayerNorm(HIDDEN) if crosses else None
        self.cross = Attention(dropout) if crosses else None
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.dropout = dropout

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = x + F.dropout(self.attention(self.norm1(x), mask), self.dropout)
        if self.cross is not None:
            x = x + F.dropout(self.cross(self.norm_cross(x), memory, memory_mask), self.dropout)
        y = self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout)


class Stack(nn.Module):
    def __init__(self, dropout, **options):
        super().__init__()
        self.layers = nn.ModuleList([Layer(dropout, **options) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x, *context):
        for layer in self.layers:
            x = layer(x, *context)
        return self.norm(x)


class Base(nn.Module):
    def __init__(self, length, words, dropout):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, HIDDEN), nn.Embedding(length, HIDDEN)
        self.bias = nn.Parameter(torch.zeros(words))
        self.dropout = dropout

    def embed(self, ids):
        return self.words(ids) + self.positions.weight[: ids.shape[1]]

    def lm_loss(self, hidden, labels, loss_mask):
        logits = F.linear(hidden, self.words.weight, self.bias.to(hidden.dtype))
        losses = F.cross_entropy(logits.view(-1, logits.size(-1)).float(), labels.view(-1), reduction="none")
        return (losses * loss_mask.view(-1)).sum() / loss_mask.sum()


class Bert(Base):
    def __init__(self, shape, dropout):
        super().__init__(shape[0], shape[2], dropout)
        self.types = nn.Embedding(2, HIDDEN)
        self.encoder = Stack(dropout)
        self.dense, self.norm = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
        self.pooler, self.binary = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, b):
        x = F.dropout(self.embed(b["tokens"]) + self.types(b["types"]), self.dropout)
        x = self.encoder(x, b["mask"])
        lm = self.lm_loss(self.norm(F.gelu(self.dense(x))), b["labels"], b["loss_mask"])
        order = self.binary(torch.tanh(self.pooler(x[:, 0])))
        return lm + F.cross_entropy(order.float(), b["is_random"])


class T5(Base):
    def __init__(self, shape, dropout):
        super().__init__(shape[0], shape[2], dropout)
        self.encoder, self.decoder = Stack(dropout), Stack(dropout, causal=True, crosses=True)

    def forward(self, b):
        memory = self.encoder(F.dropout(self.embed(b["tokens"]), self.dropout), b["mask"])
        x = F.dropout(self.embed(b["decoder_tokens"]), self.dropout)
        return self.lm_loss(self.decoder(x, None, memory, b["mask"]), b["labels"], b["loss_mask"])


def batch_of(name, shape, has_mask):
    se, sd, words = shape
    draw = lambda s, below: torch.randint(0, below, (BATCH, s), device="cuda")
    batch = {"tokens": draw(se, words), "labels": draw(sd or se, words),
             "mask": torch.ones(BATCH, 1, 1, se, dtype=torch.bool, device="cuda") if has_mask else None}
    if name == "bert-large":
        batch |= {"types": draw(se, 2), "is_random": draw(1, 2).view(-1),
                  "loss_mask": (torch.rand(BATCH, se, device="cuda") < 0.15).float()}
    else:
        batch |= {"decoder_tokens": draw(sd, words), "loss_mask": torch.ones(BATCH, sd, device="cuda")}
    return batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--no-mask", action="store_true")
    flags = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1234)
    shape = SHAPES[flags.name]
    model = (Bert if flags.name == "bert-large" else T5)(shape, flags.dropout).cuda()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model)
    batch = batch_of(flags.name, shape, not flags.no_mask)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    started = time.time()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    warm_up = time.time() - started
    seconds = []
    for _ in range(flags.steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    median = sorted(seconds)[len(seconds) // 2]
    print(json.dumps({
        "system": f"torch {torch.__version__}", "workload": flags.name, "dropout": flags.dropout,
        "mask": not flags.no_mask, "parameters": sum(p.numel() for p in model.parameters()),
        "step_ms": median * 1e3, "tokens_per_second": BATCH * (shape[0] + shape[1]) / median,
        "peak_allocated_mib": torch.cuda.max_memory_allocated() / 2**20, "warm_up_s": warm_up}), flush=True)


if __name__ == "__main__":
    main()
