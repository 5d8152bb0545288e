"""The reference of fine-tuning: a plain PyTorch loop over blocks of text.

    python make.py ../hf/gpt2            # needs torch and transformers; writes the texts and reference.json
    python make.py ../hf/gpt2 adapter    # also PEFT; trains the adapters of that folder and writes lora.json

The texts are numbers, which are token ids. The model is the GPT-2 of ../hf/gpt2, in fp32, without dropout.
"""
import json
import math
import pathlib
import random
import sys

import torch
import transformers

FOLDER = pathlib.Path(__file__).parent
BLOCK, BATCH, ACCUMULATION, EPOCHS, SEED = 16, 4, 2, 2, 42
LR, WARMUP, WEIGHT_DECAY, CLIP = 1e-3, 2, 0.1, 1.0


def write_texts(name, count, seed):
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        token, step = draw.randrange(130), draw.choice([1, 3, 7])
        lines.append(" ".join(str((token + i * step) % 130) for i in range(draw.randrange(20, 40))))
    (FOLDER / name).write_text("\n".join(lines) + "\n")
    return [[int(word) for word in line.split()] for line in lines]


def blocks_of(texts):
    blocks = []
    for first in range(0, len(texts), 1000):
        ids = [i for text in texts[first:first + 1000] for i in text]
        blocks += [ids[i:i + BLOCK] for i in range(0, len(ids) - BLOCK + 1, BLOCK)]
    return torch.tensor(blocks)


def main():
    train = blocks_of(write_texts("train.txt", 40, 1))
    batch = BATCH * ACCUMULATION
    train = train[:len(train) // batch * batch]
    valid = blocks_of(write_texts("valid.txt", 7, 2))
    # The texts that do not fill a batch are cut off the file, so that both programs see the same.
    ids = train.flatten().tolist()
    lines = [ids[i:i + 32] for i in range(0, len(ids), 32)]
    (FOLDER / "train.txt").write_text("\n".join(" ".join(map(str, line)) for line in lines) + "\n")

    model = transformers.GPT2LMHeadModel.from_pretrained(sys.argv[1]).float()
    result = "reference.json"
    if len(sys.argv) > 2:
        import peft
        model = peft.PeftModel.from_pretrained(model, sys.argv[2], is_trainable=True)
        result = "lora.json"
    model.eval()  # no dropout
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=WEIGHT_DECAY), dict(params=others, weight_decay=0.0)],
        lr=LR, betas=(0.9, 0.999), eps=1e-8)
    steps = EPOCHS * len(train) // batch
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, steps)

    losses, norms, evaluations = [], [], []
    for epoch in range(EPOCHS):
        generator = torch.Generator()
        generator.manual_seed(SEED + epoch)  # as Accelerate's SeedableRandomSampler
        order = torch.randperm(len(train), generator=generator)
        for first in range(0, len(train), batch):
            total = 0.0
            for part in range(ACCUMULATION):
                at = order[first + part * BATCH:first + (part + 1) * BATCH]
                loss = model(input_ids=train[at], labels=train[at]).loss / ACCUMULATION
                loss.backward()
                total += loss.item()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(total)
        with torch.no_grad():
            each = [model(input_ids=b[None], labels=b[None]).loss.item() for b in valid]
        evaluations.append(sum(each) / len(each))
    (FOLDER / result).write_text(json.dumps({
        "torch": torch.__version__, "transformers": transformers.__version__,
        "train_blocks": len(train), "valid_blocks": len(valid), "losses": losses,
        "grad_norms": norms, "eval_losses": evaluations,
        "perplexity": math.exp(evaluations[-1])}, indent=1) + "\n")


main()
