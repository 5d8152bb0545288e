#!/usr/bin/env python3
"""Writes mxfp4 and fp8-blocks beside this file, and ../hf/gpt-oss-small: small models, and what
transformers computes with the same weights, dequantized.

Usage: generate_blocks.py   (in an environment with torch and transformers)
"""
import json
import pathlib

import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = pathlib.Path(__file__).parent
IDS = {"vocab_size": 67, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def random_model(config, seed):
    """Every parameter and buffer of a checkpoint is random; norms are near 1."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, x in model.state_dict().items():
            x.copy_(torch.randn_like(x) * 0.15 + (1.0 if "norm" in name else 0.0))
    return model


def inputs(seed):
    torch.manual_seed(seed)
    return torch.randint(0, 67, (2, 20))


def write(folder, config, tensors, expected):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({n: x.contiguous() for n, x in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    save_file({n: x.clone().contiguous() for n, x in expected.items()}, folder / "expected.safetensors")


def saved(model):
    """The tensors and config.json of save_pretrained."""
    import tempfile
    from safetensors.torch import load_file
    with tempfile.TemporaryDirectory() as path:
        model.save_pretrained(path)
        return load_file(path + "/model.safetensors"), json.loads((pathlib.Path(path) / "config.json").read_text())


def gpt_oss():
    return transformers.GptOssConfig(
        **IDS, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=3, num_experts_per_tok=2,
        sliding_window=6, max_position_embeddings=64,
        rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "beta_fast": 32.0,
                         "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 16})


def write_gpt_oss_small():
    model = random_model(gpt_oss(), 1)
    tensors, config = saved(model)
    ids = inputs(2)
    out = model(ids, labels=ids)
    expected = {"input.input_ids": ids, "input.labels": ids.clone(), "logits": out.logits, "loss": out.loss.reshape(1)}
    out.loss.backward()
    names = dict(model.named_parameters())
    expected |= {f"grad.{n}": p.grad.clone() for n, p in names.items()}
    is_decayed = {n: p.dim() >= 2 and not n.endswith("bias") for n, p in names.items()}
    decayed = [p for n, p in names.items() if is_decayed[n]]
    others = [p for n, p in names.items() if not is_decayed[n]]
    steps = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                              lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    rows = []
    for _ in range(3):
        steps.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        rows.append([loss.item(), torch.nn.utils.clip_grad_norm_(names.values(), 1.0).item()])
        steps.step()
    expected["adamw.loss_and_gradnorm"] = torch.tensor(rows)
    write(HERE.parent / "hf" / "gpt-oss-small", config, tensors, {n: x.detach() for n, x in expected.items()})


def write_mxfp4():
    model = random_model(gpt_oss(), 3)
    tensors, config = saved(model)
    torch.manual_seed(4)
    for layer in range(2):
        for name, rows in (("gate_up_proj", 64), ("down_proj", 32)):
            weight = f"model.layers.{layer}.mlp.experts.{name}"
            blocks = torch.randint(0, 256, (3, rows, 1, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, (3, rows, 1), dtype=torch.uint8)
            plain = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            assert plain.shape == tensors[weight].shape
            with torch.no_grad():
                model.get_parameter(weight).copy_(plain)
            del tensors[weight]
            tensors[weight + "_blocks"], tensors[weight + "_scales"] = blocks, scales
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    ids = inputs(5)
    with torch.no_grad():
        write(HERE / "mxfp4", config, tensors, {"input.input_ids": ids, "logits": model(ids).logits})


def write_fp8_blocks():
    block = 32
    config = transformers.DeepseekV3Config(
        **IDS, hidden_size=48, intermediate_size=80, moe_intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1, n_group=4, topk_group=2,
        num_experts_per_tok=3, first_k_dense_replace=1, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8,
        qk_rope_head_dim=4, v_head_dim=8, max_position_embeddings=64, routed_scaling_factor=2.5)
    # Its second layer is that of the multi-token prediction, which transformers does not have.
    source = random_model(transformers.DeepseekV3Config(**{**config.to_dict(), "num_hidden_layers": 3}), 6)
    tensors, _ = saved(source)
    model = random_model(config, 7)
    _, fields = saved(model)
    last = "model.layers.2."
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{last}{name}.weight"] = 1 + 0.15 * torch.randn(48)
    tensors[last + "eh_proj.weight"] = 0.15 * torch.randn(48, 96)
    tensors[last + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[last + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    for name in sorted(tensors):
        is_linear = name.endswith("_proj.weight") or "_proj_with_mqa" in name
        if not is_linear or name.endswith("eh_proj.weight"):
            continue
        weight = tensors[name]
        rows, columns = weight.shape
        of_row, of_column = torch.arange(rows) // block, torch.arange(columns) // block
        scales = torch.zeros(int(of_row[-1]) + 1, int(of_column[-1]) + 1)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                scales[i, j] = weight[of_row == i][:, of_column == j].abs().max() / 448
        every = scales[of_row][:, of_column]
        numbers = (weight / every).to(torch.float8_e4m3fn)
        tensors[name], tensors[name + "_scale_inv"] = numbers, scales
    plain = {n: x.float() for n, x in tensors.items() if not n.endswith("_scale_inv") and not n.startswith(last)}
    for name in plain:
        scales = tensors.get(name + "_scale_inv")
        if scales is not None:
            rows, columns = plain[name].shape
            plain[name] *= scales[torch.arange(rows) // block][:, torch.arange(columns) // block]
    import tempfile
    with tempfile.TemporaryDirectory() as path:
        model.config.save_pretrained(path)
        save_file(plain, path + "/model.safetensors", {"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    fields["num_nextn_predict_layers"] = 1
    fields["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                     "weight_block_size": [block, block]}
    ids = inputs(8)
    with torch.no_grad():
        write(HERE / "fp8-blocks", fields, tensors, {"input.input_ids": ids, "logits": model(ids).logits})


if __name__ == "__main__":
    write_gpt_oss_small()
    write_mxfp4()
    write_fp8_blocks()
