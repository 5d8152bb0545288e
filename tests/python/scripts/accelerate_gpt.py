"""A script of Accelerate's documents for Megatron-LM, shortened: everything but the first four imports is as it is
written for Accelerate."""

import argparse
import json
import logging
import math
from functools import partial

from megatron_cpp.accelerate import Accelerator, DistributedType
from megatron_cpp.accelerate.logging import get_logger
from megatron_cpp.accelerate.utils import GPTTrainStep, MegatronLMDummyScheduler, MegatronLMPlugin, set_seed
from megatron_cpp.accelerate.utils import avg_losses_across_data_parallel_group

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config, default_data_collator

logger = get_logger(__name__)


class GPTTrainStepWithCustomLoss(GPTTrainStep):
    def __init__(self, megatron_args, **kwargs):
        super().__init__(megatron_args)
        self.kwargs = kwargs

    def get_loss_func(self):
        def loss_func(inputs, loss_mask, output_tensor):
            batch_size, seq_length = output_tensor.shape
            losses = output_tensor.float()
            loss_mask = loss_mask.view(-1).float()
            loss = losses.reshape(-1) * loss_mask

            # Resize and average loss per sample
            loss_per_sample = loss.view(batch_size, seq_length).sum(axis=1)
            loss_mask_per_sample = loss_mask.view(batch_size, seq_length).sum(axis=1)
            loss_per_sample = loss_per_sample / loss_mask_per_sample

            # Calculate and scale weighting
            weights = torch.stack([(inputs == kt).float() for kt in self.kwargs["keytoken_ids"]]).sum(axis=[0, 2])
            weights = 1.0 + self.kwargs["alpha"] * weights
            # Calculate weighted average
            weighted_loss = (loss_per_sample * weights).mean()

            # Reduce loss across data parallel groups
            averaged_loss = avg_losses_across_data_parallel_group([weighted_loss])

            return weighted_loss, {"lm loss": averaged_loss[0]}

        return loss_func

    def get_forward_step_func(self):
        def forward_step(data_iterator, model):
            """Forward step."""
            # Get the batch.
            tokens, labels, loss_mask, attention_mask, position_ids = self.get_batch(data_iterator)
            output_tensor = model(tokens, position_ids, attention_mask, labels=labels)

            return output_tensor, partial(self.loss_func, tokens, loss_mask)

        return forward_step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--custom_loss", action="store_true")
    parser.add_argument("--resume_from_checkpoint")
    parser.add_argument("--vocab_unit", type=int, default=128)
    parser.add_argument("--num_train_epochs", type=int, default=2)
    args = parser.parse_args()

    plugin = MegatronLMPlugin(other_megatron_args={"make_vocab_size_divisible_by": args.vocab_unit})
    if args.custom_loss:
        plugin.custom_train_step_class = GPTTrainStepWithCustomLoss
        plugin.custom_train_step_kwargs = {"keytoken_ids": [7, 11, 13], "alpha": 0.25}
    accelerator = Accelerator(megatron_lm_plugin=plugin, log_with="jsonl", project_dir=args.output_dir)
    logging.basicConfig(format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", level=logging.INFO)
    set_seed(42)

    config = GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=16, vocab_size=100, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0)
    model = AutoModelForCausalLM.from_config(config)
    samples = [{"input_ids": [(first + 3 * i) % 97 for i in range(16)]} for first in range(22)]
    samples = [{**one, "labels": one["input_ids"]} for one in samples]
    train_dataloader = DataLoader(samples, shuffle=True, collate_fn=default_data_collator, batch_size=2)
    eval_dataloader = DataLoader(samples[:6], collate_fn=default_data_collator, batch_size=2)

    no_decay = ["bias", "layer_norm.weight"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    max_train_steps = args.num_train_epochs * len(train_dataloader)
    lr_scheduler = MegatronLMDummyScheduler(optimizer=optimizer, total_num_steps=max_train_steps, warmup_num_steps=0)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler)

    if accelerator.distributed_type == DistributedType.MEGATRON_LM:
        total_batch_size = accelerator.state.megatron_lm_plugin.num_micro_batches * 2
    logger.info(f"  Total train batch size = {total_batch_size}")
    accelerator.init_trackers("clm", vars(args))
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)

    record = {"losses": [], "eval": []}
    for epoch in range(args.num_train_epochs):
        model.train()
        for step, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            record["losses"].append(loss.detach().float().item())

        model.eval()
        losses = []
        for step, batch in enumerate(eval_dataloader):
            with torch.no_grad():
                outputs = model(**batch)
            loss = outputs.loss
            if accelerator.distributed_type == DistributedType.MEGATRON_LM:
                losses.append(loss)
            else:
                losses.append(accelerator.gather_for_metrics(loss.repeat(2)))
        losses = torch.tensor(losses)
        eval_loss = torch.mean(losses)
        perplexity = math.exp(eval_loss)
        logger.info(f"epoch {epoch}: perplexity: {perplexity} eval_loss: {eval_loss}")
        accelerator.log({"perplexity": perplexity, "eval_loss": eval_loss, "epoch": epoch}, step=len(record["losses"]))
        record["eval"].append(eval_loss.item())

    accelerator.end_training()
    accelerator.wait_for_everyone()
    accelerator.save_state(args.output_dir + "/state")
    unwrapped = accelerator.unwrap_model(model)
    record["generated"] = None
    if accelerator.num_processes == accelerator.state.megatron_lm_plugin.tp_degree * \
            accelerator.state.megatron_lm_plugin.pp_degree:
        record["generated"] = unwrapped.megatron_generate(
            torch.tensor([[3, 6, 9], [1, 4, 0]]), attention_mask=torch.tensor([[1, 1, 1], [1, 1, 0]]),
            max_new_tokens=3, top_k=1).tolist()
    if accelerator.is_main_process:
        record["lr"] = lr_scheduler.get_last_lr()
        with open(args.output_dir + "/record.json", "w") as file:
            json.dump(record, file)


if __name__ == "__main__":
    main()
