"""Checkpoints of the format torch_dist, saved by Megatron Core on the CPU.

    python make.py gpt      # one rank, fp32, Adam: 10 iterations on the corpus of ../megatron, saved, 10 more logged
    python make.py llama    # 2 x 2 ranks (tensor x pipeline), bf16, distributed optimizer

Needs megatron-core 0.16.1, numpy and PyTorch; README.md says what the files are.
"""
import argparse
import contextlib
import os
import pathlib
import random
import shutil
import sys

import numpy as np
import torch
import torch.multiprocessing

FOLDER = pathlib.Path(".")  # the library stores the path that it saves to
MEGATRON = pathlib.Path("../megatron")
SEQUENCE, BATCH, MICRO_BATCH, TRAIN_ITERS, SAVED = 32, 8, 2, 20, 10


# Megatron Core asks for a GPU in a few places where the CPU does.
def without_gpu():
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: None
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    original = torch.Tensor.type

    def cuda_type(tensor, dtype=None, **kwargs):
        if dtype is None:
            return original(tensor).replace("torch.", "torch.cuda.")
        return original(tensor, dtype, **kwargs)

    torch.Tensor.type = cuda_type
    for name in ("tensor", "zeros", "empty", "full"):
        make = getattr(torch, name)
        on_cpu = lambda *args, make=make, device=None, **kwargs: make(*args, **kwargs)
        setattr(torch, name, on_cpu)
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()  # there is no dropout
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor


def start(rank, tensor, pipeline, port, data=1, chunks=None):
    from megatron.core import parallel_state

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=tensor * pipeline * data)
    parallel_state.initialize_model_parallel(tensor, pipeline, chunks)


def model_of(flags, pipeline=1, chunk=None):
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    is_llama = flags.swiglu
    config = TransformerConfig(
        num_layers=flags.num_layers,
        hidden_size=flags.hidden_size,
        ffn_hidden_size=flags.ffn_hidden_size,
        num_attention_heads=flags.num_attention_heads,
        num_query_groups=flags.num_query_groups if is_llama else None,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        normalization=flags.normalization,
        layernorm_epsilon=flags.norm_epsilon,
        add_bias_linear=flags.add_bias_linear,
        gated_linear_unit=is_llama,
        activation_func=torch.nn.functional.silu if is_llama else torch.nn.functional.gelu,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        use_cpu_initialization=True,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=flags.virtual_pipeline_model_parallel_size,
        pipeline_dtype=flags.params_dtype,
        params_dtype=flags.params_dtype,
        bf16=flags.bf16,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(normalization=flags.normalization),
        vocab_size=flags.padded_vocab_size,
        max_sequence_length=flags.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
        vp_stage=chunk,
        share_embeddings_and_output_weights=not flags.untie_embeddings_and_output_weights,
        position_embedding_type=flags.position_embedding_type,
        rotary_base=10000,
    ).to(flags.params_dtype)


def base_flags(**more):
    """The settings that a run of Megatron-LM stores, as far as they matter."""
    flags = dict(
        num_layers=2, encoder_num_layers=2, hidden_size=16, ffn_hidden_size=64, num_attention_heads=4,
        kv_channels=4, group_query_attention=False, num_query_groups=1, seq_length=SEQUENCE,
        encoder_seq_length=SEQUENCE, decoder_seq_length=None, max_position_embeddings=SEQUENCE,
        position_embedding_type="learned_absolute", add_position_embedding=True, rotary_percent=1.0,
        rotary_base=10000, rotary_interleaved=False, normalization="LayerNorm", norm_epsilon=1e-5,
        apply_layernorm_1p=False, add_bias_linear=True, add_qkv_bias=False, swiglu=False, squared_relu=False,
        openai_gelu=False, onnx_safe=None, bias_gelu_fusion=True,
        apply_residual_connection_post_layernorm=False,
        untie_embeddings_and_output_weights=False, num_experts=None, tokenizer_type="GPT2BPETokenizer",
        vocab_size=None, padded_vocab_size=512, make_vocab_size_divisible_by=128,
        tensor_model_parallel_size=1, pipeline_model_parallel_size=1,
        virtual_pipeline_model_parallel_size=None, data_parallel_size=1, expert_model_parallel_size=1,
        context_parallel_size=1, sequence_parallel=False, world_size=1, rank=0, fp16=False, bf16=False,
        params_dtype=torch.float32, use_distributed_optimizer=False, accumulate_allreduce_grads_in_fp32=False,
        transformer_impl="transformer_engine", ckpt_format="torch_dist", use_dist_ckpt=True,
        data_parallel_random_init=False, seed=1234, iteration=0, consumed_train_samples=0,
        consumed_valid_samples=0, train_iters=TRAIN_ITERS, train_samples=None, micro_batch_size=MICRO_BATCH,
        global_batch_size=BATCH, lr=1e-3, min_lr=1e-4, weight_decay=0.1, clip_grad=1.0, adam_beta1=0.9,
        adam_beta2=0.95, adam_eps=1e-8, optimizer="adam",
    )  # fmt: skip
    flags.update(more)
    return argparse.Namespace(**flags)


def samples():
    """The training samples of the corpus, in Megatron's order, which its index files hold."""
    data = MEGATRON / "data/corpus_text_document"
    index = data.with_suffix(".idx").read_bytes()
    count = int.from_bytes(index[18:26], "little")
    lengths = np.frombuffer(index, np.int32, count, 34)
    pointers = np.frombuffer(index, np.int64, count, 34 + 4 * count)
    tokens = np.fromfile(data.with_suffix(".bin"), np.uint16)
    cache = MEGATRON / "gpt/cache"
    description = next(p for p in cache.glob("*description.txt") if '"train"' in p.read_text())
    load = lambda what: np.load(str(description).replace("description.txt", f"{what}.npy"))
    documents, positions, order = load("document_index"), load("sample_index"), load("shuffle_index")
    for row in order:
        (first, begin), (last, end) = positions[row], positions[row + 1]
        parts = []
        for at in range(first, last + 1):
            document = documents[at]
            start = pointers[document] // 2
            piece = tokens[start : start + lengths[document]]
            parts.append(piece[begin if at == first else 0 : end + 1 if at == last else None])
        sample = np.concatenate(parts).astype(np.int64)
        assert len(sample) == SEQUENCE + 1, len(sample)
        yield torch.from_numpy(sample)


def optimizer_of(flags, model):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    ddp = DistributedDataParallel(
        model.config,
        DistributedDataParallelConfig(
            use_distributed_optimizer=flags.use_distributed_optimizer, grad_reduce_in_fp32=flags.bf16
        ),
        model,
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=flags.lr, min_lr=flags.min_lr, weight_decay=flags.weight_decay,
            bf16=flags.bf16, params_dtype=flags.params_dtype, adam_beta1=flags.adam_beta1,
            adam_beta2=flags.adam_beta2, adam_eps=flags.adam_eps, clip_grad=flags.clip_grad,
            use_distributed_optimizer=flags.use_distributed_optimizer,
        ),
        [ddp],
    )  # fmt: skip
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=flags.lr, min_lr=flags.min_lr, lr_warmup_steps=4 * BATCH,
        lr_decay_steps=TRAIN_ITERS * BATCH, lr_decay_style="cosine", start_wd=flags.weight_decay,
        end_wd=flags.weight_decay, wd_incr_steps=TRAIN_ITERS * BATCH, wd_incr_style="constant",
    )  # fmt: skip
    return ddp, optimizer, scheduler


def state_of(flags, iteration, ddp, optimizer, scheduler, metadata):
    """What Megatron-LM's save_checkpoint() hands to the library."""
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    flags.iteration, flags.consumed_train_samples = iteration, iteration * BATCH
    state = {"args": flags, "checkpoint_version": 3.0, "iteration": iteration}
    for at, chunk in enumerate(ddp):
        name = "model" if len(ddp) == 1 else f"model{at}"
        state[name] = chunk.module.sharded_state_dict(metadata=metadata)
    state["optimizer"] = optimizer.sharded_state_dict(state, metadata=metadata)
    state["opt_param_scheduler"] = scheduler.state_dict()
    random_state = [{
        "random_rng_state": random.getstate(), "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(), "cuda_rng_state": torch.cuda.get_rng_state(),
        "rng_tracker_states": {},
    }]  # fmt: skip
    tensor, pipeline = flags.tensor_model_parallel_size, flags.pipeline_model_parallel_size
    here = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
    )
    state["rng_state"] = ShardedObject("rng_state", random_state, (pipeline, tensor), here, replica_id=parallel_state.get_data_parallel_rank())
    state["num_floating_point_operations_so_far"] = 123456789
    return state


def save(folder, state, metadata):
    from megatron.core import dist_checkpointing

    target = folder / f"iter_{state['iteration']:07d}"
    if torch.distributed.get_rank() == 0:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
    torch.distributed.barrier()
    content = {k: v for k, v in metadata.items() if k != "dp_cp_group"}
    dist_checkpointing.save(state, str(target), content_metadata=content)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(state["iteration"]))
    return target


def logits_of(model, tokens):
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    mask = torch.triu(torch.ones(1, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bool), 1)
    return model(tokens, positions, mask)  # [b, s, v]


def write_expected(path, model, tokens):
    from safetensors.torch import save_file

    model.eval()
    with torch.no_grad():
        logits = logits_of(model, tokens).float()
    weights = {k: v.detach().clone() for k, v in model.named_parameters()}
    save_file({"tokens": tokens, "logits": logits.contiguous(), **weights}, str(path))


def make_gpt():
    start(0, 1, 1, 29611)
    torch.manual_seed(7)
    flags = base_flags()
    ddp, optimizer, scheduler = optimizer_of(flags, model_of(flags))
    source, lines = samples(), []
    for iteration in range(1, TRAIN_ITERS + 1):
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        losses = []
        for _ in range(BATCH // MICRO_BATCH):
            text = torch.stack([next(source) for _ in range(MICRO_BATCH)])
            logits = logits_of(ddp, text[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
            (loss / (BATCH // MICRO_BATCH)).backward()
            losses.append(loss.item())
        ddp.finish_grad_sync()
        rate = optimizer.param_groups[0]["lr"]
        _, norm, _ = optimizer.step()
        scheduler.step(BATCH)
        lines.append(f"{iteration} {rate:.6E} {np.mean(losses):.7E} {norm:.4f}\n")
        if iteration == SAVED:
            group = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
            save(FOLDER / "gpt", state_of(flags, iteration, [ddp], optimizer, scheduler, group), group)
            tokens = torch.randint(0, 502, (2, 16), generator=torch.Generator().manual_seed(5))
            write_expected(FOLDER / "gpt/expected.safetensors", ddp.module, tokens)
            ddp.train()
    (FOLDER / "gpt/iterations.txt").write_text("".join(lines))


def llama_flags(**more):
    values = dict(
        ffn_hidden_size=24, group_query_attention=True, num_query_groups=2,
        position_embedding_type="rope", add_position_embedding=False, normalization="RMSNorm",
        add_bias_linear=False, swiglu=True, untie_embeddings_and_output_weights=True, bf16=True,
        tokenizer_type="NullTokenizer", vocab_size=125, padded_vocab_size=128,
        make_vocab_size_divisible_by=64, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
        accumulate_allreduce_grads_in_fp32=True,
    )  # fmt: skip
    return base_flags(**{**values, **more})


def llama_rank(rank, variant, folder, metadata):
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    without_gpu()
    start(rank, 2, 2, 29612)
    flags = llama_flags(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=2, world_size=4, rank=rank,
        dist_ckpt_optim_fully_reshardable=True,
    )  # fmt: skip
    torch.manual_seed(11)
    ddp, optimizer, scheduler = optimizer_of(flags, model_of(flags, pipeline=2))
    metadata = {**metadata, "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    tensor_rank = parallel_state.get_tensor_model_parallel_rank()
    stage = parallel_state.get_pipeline_model_parallel_rank()
    for step in range(2):
        ddp.zero_grad_buffer()
        for at, (name, parameter) in enumerate(ddp.module.named_parameters()):
            is_divided = getattr(parameter, "tensor_model_parallel", False)
            seed = ((step * 100 + at) * 2 + stage) * 2 + (tensor_rank if is_divided else 0)
            draw = torch.Generator().manual_seed(seed)
            parameter.main_grad.copy_(torch.randn(parameter.shape, generator=draw))
        optimizer.step()
        scheduler.step(BATCH)
    state = lambda: state_of(flags, 2, [ddp], optimizer, scheduler, metadata)
    target = save(folder, state(), metadata)
    torch.distributed.barrier()
    # Later versions store the content of common.pt as an object beside the tensors.
    common = torch.load(target / "common.pt", weights_only=False)
    common = ShardedObject("common_state", common, (1,), (0,), replica_id=rank)
    save(folder, {**state(), "common_state": common}, metadata)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def expect_llama(_, folder, metadata):
    """The library reads the shards of four ranks into the model of one, and runs it."""
    from megatron.core import dist_checkpointing

    without_gpu()
    start(0, 1, 1, 29613)
    model = model_of(llama_flags())
    state = dist_checkpointing.load({"model": model.sharded_state_dict(metadata=metadata)}, str(folder / "iter_0000002"))
    model.load_state_dict(state["model"], strict=False)
    tokens = torch.randint(0, 125, (2, 16), generator=torch.Generator().manual_seed(6))
    wide = model_of(llama_flags(params_dtype=torch.float32, bf16=False))
    wide.load_state_dict(model.state_dict(), strict=False)
    write_expected(folder / "expected.safetensors", wide, tokens)
    (folder / "iter_0000002/common.pt").unlink()  # this version needs it to load


def make_llama(variant):
    metadata = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": False,
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }
    if variant == "llama":
        metadata["non_homogeneous_layers"] = True
    if variant == "singleton":
        metadata["singleton_local_shards"] = True
    if variant == "bucket":
        metadata["distrib_optim_sharding_type"] = "dp_reshardable"
    folder = pathlib.Path(os.environ.get("OUT", FOLDER)) / variant
    torch.multiprocessing.spawn(llama_rank, (variant, folder, metadata), nprocs=4)
    torch.multiprocessing.spawn(expect_llama, (folder, metadata), nprocs=1)


if __name__ == "__main__":
    os.chdir(pathlib.Path(__file__).parent)
    if sys.argv[1] == "gpt":
        without_gpu()
        make_gpt()
    else:
        make_llama(sys.argv[1])
