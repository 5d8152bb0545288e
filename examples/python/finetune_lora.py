"""Trains low-rank adapters of a checkpoint, merges them, and opens the result: finetune_lora.py
CHECKPOINT DIRECTORY."""

import sys

import megatron_cpp as mg

checkpoint, directory = sys.argv[1:]


class Even(mg.Task):
    """Texts that count in twos."""

    def samples(self, split, num_samples, num_tokens):
        return [[(first + 2 * i) % 50 for i in range(num_tokens)] for first in range(100)]


trainer = mg.Trainer(
    task=Even(), load=checkpoint, finetune=True, use_checkpoint_args=True, lora_rank=8, lora_alpha=16, seq_length=32,
    micro_batch_size=8, train_iters=200, lr=2e-2, log_interval=50, eval_iters=0, save=directory + "/adapted",
    save_interval=1000, tokenizer_type="NullTokenizer", vocab_size=50, num_workers=0)
losses = [step.loss for step in trainer]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
trainer.close()

mg.convert(directory + "/adapted", directory + "/merged", saver="native", no_optimizer=True)
with mg.Model.from_pretrained(directory + "/merged") as model:
    print(model.generate([2, 4, 6, 8], max_new_tokens=4, top_k=1).tokens)
