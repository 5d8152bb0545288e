"""Samples that the script computes: sums of two numbers, of which only the result is trained."""

import numpy as np

import megatron_cpp as mg

PLUS, EQUALS = 10, 11


class Sums(mg.Task):
    def samples(self, split, num_samples, num_tokens):
        generator = np.random.default_rng({"train": 1, "valid": 2, "test": 3}[split])
        a, b = generator.integers(0, 5, (2, 4096, num_tokens // 5 + 1))
        text = np.stack([a, np.full_like(a, PLUS), b, np.full_like(a, EQUALS), a + b], axis=-1)
        return np.ascontiguousarray(text.reshape(4096, -1)[:, :num_tokens], np.int64)

    def adjust_batch(self, batch, split):
        batch.loss_mask[:] = batch.tokens == EQUALS  # the next token is the sum


trainer = mg.Trainer(
    task=Sums(), num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=20, max_position_embeddings=20,
    micro_batch_size=16, train_iters=150, lr=3e-3, eval_iters=4, eval_interval=150, log_interval=50,
    tokenizer_type="NullTokenizer", vocab_size=12, num_workers=0)
losses = [step.loss for step in trainer]
print(f"loss of the sums {losses[0]:.3f} -> {losses[-1]:.3f}")
