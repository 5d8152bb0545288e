"""The indexed-data variant of Accelerate's script, shortened: --data_path PREFIX --output FILE."""

import argparse
import json

from megatron_cpp.accelerate import Accelerator
from megatron_cpp.accelerate.utils import MegatronLMDummyDataLoader, MegatronLMDummyScheduler, MegatronLMPlugin, set_seed

import torch
from transformers import AutoModelForCausalLM, GPT2Config


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    max_train_steps, eval_iters = 6, 3

    plugin = MegatronLMPlugin(eval_iters=eval_iters, eval_interval=6, other_megatron_args={
        "tokenizer_type": "NullTokenizer", "vocab_size": 127, "make_vocab_size_divisible_by": 64})
    accelerator = Accelerator(megatron_lm_plugin=plugin)
    set_seed(42)
    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=16, vocab_size=128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    lr_scheduler = MegatronLMDummyScheduler(optimizer=optimizer, total_num_steps=max_train_steps, warmup_num_steps=2)

    megatron_dataloader_config = {
        "data_path": args.data_path,
        "splits_string": "8,1,1",
        "seq_length": 16,
        "micro_batch_size": 2,
    }
    megatron_dataloader = MegatronLMDummyDataLoader(**megatron_dataloader_config)
    accelerator.state.megatron_lm_plugin.megatron_dataset_flag = True
    model, optimizer, lr_scheduler, train_dataloader, eval_dataloader, _ = accelerator.prepare(
        model, optimizer, lr_scheduler, megatron_dataloader, megatron_dataloader, megatron_dataloader)

    losses = []
    completed_steps = 0
    while completed_steps < max_train_steps:
        model.train()
        batch = next(train_dataloader) if train_dataloader is not None else {}
        outputs = model(**batch)
        loss = outputs.loss
        accelerator.backward(loss)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        completed_steps += 1
    eval_losses = []
    model.eval()
    while len(eval_losses) < eval_iters:
        with torch.no_grad():
            batch = next(eval_dataloader) if eval_dataloader is not None else {}
            outputs = model(**batch)
        eval_losses.append(outputs.loss)
    if accelerator.is_main_process:
        with open(args.output, "w") as file:
            json.dump({"losses": losses, "eval_loss": torch.mean(torch.stack(eval_losses)).item()}, file)


if __name__ == "__main__":
    main()
