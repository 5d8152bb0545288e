"""A loss in torch: tokens that the model knows already count less (Lin et al. 2017, arXiv:1708.02002)."""

import torch

import megatron_cpp as mg


class FocalLoss(mg.TorchTask):
    loss_name = "focal loss"

    def __init__(self, gamma):
        self.gamma = gamma

    def loss(self, losses, batch):  # [s, b]
        mask = batch.loss_mask.T
        weights = (1 - torch.exp(-losses)) ** self.gamma * mask
        mean = (losses * mask).sum() / mask.sum()
        return (weights * losses).sum() / mask.sum(), {"lm loss": mean.detach()}


trainer = mg.Trainer(
    task=FocalLoss(gamma=2.0), num_layers=2, hidden_size=32, num_attention_heads=4, seq_length=32,
    max_position_embeddings=32, micro_batch_size=4, train_iters=10, lr=1e-2, eval_iters=0, mock_data=True,
    tokenizer_type="NullTokenizer", vocab_size=50, num_workers=0)
for step in trainer:
    print(f"{step.iteration}: focal loss {step.losses['focal loss']:.4f} lm loss {step.losses['lm loss']:.4f}")
