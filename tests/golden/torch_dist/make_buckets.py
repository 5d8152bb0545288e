"""Checkpoints whose optimizer state is that of ranks' buffers (dp_reshardable), saved by Megatron Core.

    python make_buckets.py buckets   # 2 x 2 ranks (tensor x data), fp32: trains, saves, trains on
    python make_buckets.py stages    # 2 x 2 ranks (pipeline x data), 2 chunks of a rank, bf16, several buckets

Needs what make.py needs; README.md says what the files are.
"""
import os
import pathlib
import sys
import zlib

import numpy as np
import torch
import torch.multiprocessing

import make
from make import BATCH, MICRO_BATCH, SAVED, TRAIN_ITERS

BUCKETS = {
    "distrib_optim_sharding_type": "dp_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


def metadata_of(kind):
    from megatron.core import parallel_state

    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return {**BUCKETS, "distrib_optim_sharding_type": kind, "dp_cp_group": group}


def optimizer_of(flags, chunks, **bucketing):
    """make.optimizer_of() for several chunks of a model, and buckets."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, grad_reduce_in_fp32=flags.bf16, **bucketing
    )
    ddps = [
        DistributedDataParallel(model.config, config, model, disable_bucketing=at > 0)
        for at, model in enumerate(chunks)
    ]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=flags.lr, min_lr=flags.min_lr, weight_decay=flags.weight_decay,
            bf16=flags.bf16, params_dtype=flags.params_dtype, adam_beta1=flags.adam_beta1,
            adam_beta2=flags.adam_beta2, adam_eps=flags.adam_eps, clip_grad=flags.clip_grad,
            use_distributed_optimizer=True,
        ),
        ddps,
    )  # fmt: skip
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=flags.lr, min_lr=flags.min_lr, lr_warmup_steps=4 * BATCH,
        lr_decay_steps=TRAIN_ITERS * BATCH, lr_decay_style="cosine", start_wd=flags.weight_decay,
        end_wd=flags.weight_decay, wd_incr_steps=TRAIN_ITERS * BATCH, wd_incr_style="constant",
    )  # fmt: skip
    return ddps, optimizer, scheduler


def save(folder, flags, iteration, ddps, optimizer, scheduler):
    metadata = metadata_of("dp_reshardable")
    state = make.state_of(flags, iteration, ddps, optimizer, scheduler, metadata)
    make.save(folder, state, metadata)
    write_expected(folder, ddps, optimizer, metadata)


def write_expected(folder, ddps, optimizer, metadata):
    """Checksums of the state that the optimizers of all ranks hold, by key and layer."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

    mine, optimizer = [], optimizer.chained_optimizers[0]
    for ddp in ddps:
        for sharded in flat(ddp.module.sharded_state_dict(metadata=metadata)):
            try:
                place = optimizer._get_model_param_range_map(sharded.data)["param"]
            except KeyError:
                continue  # other ranks have it
            state = optimizer._get_main_param_and_optimizer_states(sharded.data)
            # Gates and ups are apart, and no tensor-parallel ranks divide them here.
            is_gated = isinstance(sharded, ShardedTensorFactory)
            offset = tuple((sharded.build()[0] if is_gated else sharded).global_offset)
            for kind in ("param", "exp_avg", "exp_avg_sq"):
                values = state[kind].detach().numpy()
                mine.append((kind, sharded.key, offset, tuple(sharded.data.shape), place.start, values))
    parts = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, mine)
    if torch.distributed.get_rank() > 0:
        return
    shards = {}  # of tensor-parallel ranks
    for kind, key, offset, shape, start, values in sum(parts, []):
        shard = shards.setdefault((kind, key, offset), np.full(shape, np.nan, np.float32))
        shard.reshape(-1)[start : start + len(values)] = values
    tensors = {}
    for (kind, key, offset), shard in sorted(shards.items(), key=lambda shard: shard[0]):
        is_merged = len(offset) > shard.ndim
        place = offset[1:] if is_merged else offset
        tensors.setdefault((kind, key, offset[0] if is_merged else 0), []).append((place, shard))
    lines = []
    for (kind, key, layer), found in tensors.items():
        axis = next((i for i in range(len(found[0][0])) if found[-1][0][i] > 0), 0)
        whole = np.concatenate([shard for _, shard in found], axis)
        assert not np.isnan(whole).any(), key
        lines.append(f"{kind} {key} {layer} {zlib.crc32(np.ascontiguousarray(whole).tobytes())}\n")
    (folder / "expected.txt").write_text("".join(lines))


def flat(state):
    """The sharded tensors of parameters."""
    for value in state.values():
        if isinstance(getattr(value, "data", None), torch.Tensor):
            yield value


def small_flags(**more):
    return make.base_flags(
        **{
            **dict(
                num_layers=1, encoder_num_layers=1, hidden_size=8, ffn_hidden_size=16, num_attention_heads=2, use_distributed_optimizer=True,
                transformer_impl="local", data_parallel_size=2, world_size=4,
            ),
            **more,
        }
    )  # fmt: skip


def buckets_rank(rank, folder):
    from megatron.core import parallel_state

    make.without_gpu()
    make.start(rank, 2, 1, 29614, data=2)
    flags = small_flags(tensor_model_parallel_size=2, rank=rank)
    torch.manual_seed(7)
    ddps, optimizer, scheduler = optimizer_of(flags, [make.model_of(flags)])
    ddp, source, lines = ddps[0], make.samples(), []
    at = parallel_state.get_data_parallel_rank()
    count = BATCH // MICRO_BATCH // 2  # microbatches of a rank
    for iteration in range(1, TRAIN_ITERS + 1):
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        texts = [torch.stack([next(source) for _ in range(MICRO_BATCH)]) for _ in range(2 * count)]
        losses = []
        for step, text in enumerate(texts[at::2]):
            tokens = text[:, :-1]
            positions = torch.arange(tokens.shape[1]).expand_as(tokens)
            mask = torch.triu(torch.ones(1, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bool), 1)
            ddp.is_last_microbatch = step == count - 1
            loss = ddp(tokens, positions, mask, labels=text[:, 1:].contiguous()).mean()
            (loss / count).backward()
            losses.append(loss.item())
        ddp.finish_grad_sync()
        total = torch.tensor(losses, dtype=torch.float64).mean()
        torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group())
        rate = optimizer.param_groups[0]["lr"]
        _, norm, _ = optimizer.step()
        scheduler.step(BATCH)
        lines.append(f"{iteration} {rate:.6E} {total.item() / 2:.7E} {norm:.4f}\n")
        if iteration == SAVED:
            save(folder, flags, iteration, ddps, optimizer, scheduler)
    if rank == 0:
        (folder / "iterations.txt").write_text("".join(lines))


def stages_rank(rank, folder):
    from megatron.core import parallel_state

    make.without_gpu()
    make.start(rank, 1, 2, 29615, data=2, chunks=2)
    flags = small_flags(
        num_layers=4, encoder_num_layers=4, pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2, num_layers_per_virtual_pipeline_stage=1,
        rank=rank, ffn_hidden_size=12, group_query_attention=True, num_query_groups=1,
        position_embedding_type="rope", add_position_embedding=False, normalization="RMSNorm",
        add_bias_linear=False, swiglu=True, bf16=True, params_dtype=torch.bfloat16,
        tokenizer_type="NullTokenizer", vocab_size=125, padded_vocab_size=128,
        make_vocab_size_divisible_by=64, accumulate_allreduce_grads_in_fp32=True,
        overlap_grad_reduce=True, ddp_bucket_size=264,
    )  # fmt: skip
    torch.manual_seed(11)
    chunks = [make.model_of(flags, 2, chunk) for chunk in range(2)]
    ddps, optimizer, scheduler = optimizer_of(flags, chunks, overlap_grad_reduce=True, bucket_size=264)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    for step in range(2):
        for chunk, ddp in enumerate(ddps):
            ddp.zero_grad_buffer()
            for at, (name, parameter) in enumerate(ddp.module.named_parameters()):
                is_shared = getattr(parameter, "shared_embedding", False)
                seed = step if is_shared else ((step * 100 + at) * 2 + stage) * 2 + chunk + 2
                draw = torch.Generator().manual_seed(seed)
                parameter.main_grad.copy_(torch.randn(parameter.shape, generator=draw))
        optimizer.step()
        scheduler.step(BATCH)
    save(folder, flags, 2, ddps, optimizer, scheduler)


if __name__ == "__main__":
    os.chdir(pathlib.Path(__file__).parent)
    folder = pathlib.Path(os.environ.get("OUT", ".")) / sys.argv[1]
    torch.multiprocessing.spawn({"buckets": buckets_rank, "stages": stages_rank}[sys.argv[1]], (folder,), nprocs=4)
