"""Trains a small GPT on texts of counting numbers, and saves it: pretrain.py DIRECTORY [ITERATIONS]."""

import sys

import megatron_cpp as mg

directory = sys.argv[1]
iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 40

with mg.DatasetWriter(directory + "/counting", dtype="uint16") as writer:
    for first in range(200):
        writer.add_document([(first + i) % 50 for i in range(40)])

trainer = mg.Trainer(
    num_layers=2, hidden_size=32, num_attention_heads=4, seq_length=32, max_position_embeddings=64,
    micro_batch_size=4, global_batch_size=8, train_iters=iterations, lr=1e-2, lr_decay_style="cosine",
    lr_warmup_fraction=0.1, log_interval=10, eval_iters=2, eval_interval=20, save=directory + "/checkpoints",
    save_interval=1000, data_path=directory + "/counting", split="9,1,0", tokenizer_type="NullTokenizer",
    vocab_size=50, num_workers=0)
losses = [step.loss for step in trainer]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
