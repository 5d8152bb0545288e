#!/usr/bin/env python3
"""Writes the folders beside this file: small models with quantized weights, and what transformers
computes with the same weights dequantized.

Usage: generate.py [FOLDER]   (with torch, transformers, compressed-tensors and bitsandbytes)

GPTQ and AWQ are packed here, number by number, as AutoGPTQ 0.7 and AutoAWQ 0.2 do; the packages
compressed-tensors and bitsandbytes pack their own formats and dequantize them.
"""
import json
import pathlib
import sys

import bitsandbytes.functional
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

SIZES = dict(vocab_size=67, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             bos_token_id=None, eos_token_id=None, pad_token_id=None)
MODELS = {
    "qwen2": (transformers.Qwen2Config, {}),
    "llama": (transformers.LlamaConfig, {}),
    # bitsandbytes 0.50 dequantizes on the CPU only rows of whole blocks correctly.
    "llama-wide": (transformers.LlamaConfig, dict(intermediate_size=128)),
    "gemma3": (transformers.Gemma3TextConfig,
               dict(head_dim=16, intermediate_size=80, sliding_window=8, query_pre_attn_scalar=16)),
}


def rounded_numbers(weight, group_of, bits, symmetric):
    """numbers [out, in], scales and zero points [out, groups] of the asymmetric range 0 .. 2^bits - 1"""
    groups = int(group_of.max()) + 1
    top = 2**bits - 1
    scales = torch.empty(weight.shape[0], groups)
    zeros = torch.empty(weight.shape[0], groups)
    for g in range(groups):
        part = weight[:, group_of == g]
        if symmetric:
            scales[:, g] = 2 * part.abs().amax(1) / top
            zeros[:, g] = (top + 1) // 2
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales[:, g] = (high - low) / top
            # AutoGPTQ cannot store the zero point 0.
            zeros[:, g] = torch.round(-low / scales[:, g]).clamp(1, top)
    scales = scales.half().float()
    numbers = torch.round(weight / scales[:, group_of]) + zeros[:, group_of]
    return numbers.clamp(0, top).long(), scales, zeros.long()


def packed(columns, bits):
    """[n, m] numbers -> int32 [n bits / 32, m], the numbers of a column one after the other, lowest bits first"""
    n, m = columns.shape
    words = [[0] * m for _ in range(n * bits // 32)]
    for j in range(m):
        stream = 0
        for i in range(n):
            stream |= int(columns[i, j]) << (bits * i)
        for w in range(len(words)):
            value = stream >> (32 * w) & 0xFFFFFFFF
            words[w][j] = value - 2**32 if value >= 2**31 else value
    return torch.tensor(words, dtype=torch.int32)


def gptq(weight, bits, group_size, symmetric, permutation, version):
    columns = weight.shape[1]
    size = columns if group_size < 0 else group_size
    group_of = torch.arange(columns) // size
    if permutation is not None:
        group_of = group_of[permutation]
    numbers, scales, zeros = rounded_numbers(weight, group_of, bits, symmetric)
    stored = zeros - 1 if version == "gptq" else zeros
    tensors = {"qweight": packed(numbers.T, bits), "qzeros": packed(stored, bits).T.contiguous(),
               "scales": scales.T.contiguous().half()}
    if permutation is not None:
        tensors["g_idx"] = group_of.int()
    return tensors, scales[:, group_of] * (numbers - zeros[:, group_of])


def awq(weight, group_size):
    group_of = torch.arange(weight.shape[1]) // group_size
    numbers, scales, zeros = rounded_numbers(weight, group_of, 4, False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def shuffled(x):  # [out, n] in the order of AWQ's words
        return x.reshape(-1, 8, x.shape[1])[:, order].reshape(x.shape)

    tensors = {"qweight": packed(shuffled(numbers), 4).T.contiguous(),
               "qzeros": packed(shuffled(zeros), 4).T.contiguous(),
               "scales": scales.T.contiguous().half()}
    return tensors, scales[:, group_of] * (numbers - zeros[:, group_of])


def compressed(weight, form, reordered=False, **settings):
    """`reordered`: groups of any columns, which weight_g_idx names, as older versions wrote them."""
    args = QuantizationArgs(**settings)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    rows, columns = weight.shape
    strategy = settings["strategy"]
    group_of = torch.zeros(columns, dtype=torch.long)
    blocks = weight.reshape(1, -1)
    if strategy == "channel":
        blocks = weight
    if strategy == "group":
        group_of = torch.arange(columns) // settings["group_size"]
        if reordered:
            group_of = group_of[torch.randperm(columns)]
        order = torch.argsort(group_of, stable=True)
        blocks = weight[:, order].reshape(-1, settings["group_size"])
    if strategy == "block":
        high, wide = settings["block_structure"]
        padded = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -rows % high))
        blocks = padded.reshape(padded.shape[0] // high, high, -1, wide).transpose(1, 2)
        shape = blocks.shape[:2]
        blocks = blocks.reshape(-1, high * wide)
    top = 448.0 if settings["type"] == "float" else 2 ** (settings["num_bits"] - 1) - 1
    low, high_value = blocks.amin(1).clamp(max=0), blocks.amax(1).clamp(min=0)
    if settings["symmetric"]:
        scale, zero = torch.maximum(-low, high_value) / top, None
    else:
        scale = (high_value - low) / (2 * top + 1)
        zero = (torch.round(-low / scale) - top - 1).clamp(-top - 1, top).to(torch.int8)
    form_of = {"tensor": (1,), "channel": (rows, 1), "group": (rows, -1)}
    want = shape if strategy == "block" else form_of[strategy]
    state = {"weight": weight, "weight_scale": scale.reshape(want).contiguous()}
    if zero is not None:
        state["weight_zero_point"] = zero.reshape(want).contiguous()
    if reordered:
        # Quantized with its columns sorted by group, as the package does while it computes.
        state["weight"] = weight[:, order].contiguous()
    stored = BaseCompressor.get_value_from_registry(form).compress(state, scheme)
    plain = BaseCompressor.get_value_from_registry(form).decompress(stored, scheme)["weight"]
    if reordered:
        back = torch.argsort(order)
        numbers = BaseCompressor.get_value_from_registry("naive-quantized").compress(
            dict(state), scheme)
        bits = settings["num_bits"]
        stored["weight_packed"] = pack_to_int32(numbers["weight"][:, back].contiguous(), bits)
        stored["weight_g_idx"] = group_of.int()
        plain = plain[:, back].contiguous()
    return {name: tensor if torch.is_tensor(tensor) else torch.tensor(tensor)
            for name, tensor in stored.items()}, plain


def four_bits(weight, kind, nested):
    packed_bytes, state = bitsandbytes.functional.quantize_4bit(
        weight, blocksize=64, compress_statistics=nested, quant_type=kind)
    tensors = {"weight": packed_bytes}
    tensors |= {f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}
    return tensors, bitsandbytes.functional.dequantize_4bit(packed_bytes, state)


def eight_bits(weight):
    numbers, values, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
    tensors = {"weight": numbers, "SCB": values, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, numbers.float() * values[:, None] / 127


def write(folder, model_name, config, quantize, extra=lambda name, module: {}):
    torch.manual_seed(20261127)
    config_class, more = MODELS[model_name]
    settings = config_class(**{**SIZES, **more})
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager")
    model.eval()
    state = {}
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * (0.1 if parameter.dim() > 1 else 0.3)
        parameter.data += 0.0 if parameter.dim() > 1 else 1.0
    replaced = set()
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        tensors, plain = quantize(name, module.weight.data)
        module.weight.data = plain.float()
        replaced.add(name + ".weight")
        state |= {f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()}
        state |= extra(name, module)
    for name, tensor in model.state_dict().items():
        tied = name == "lm_head.weight" and settings.tie_word_embeddings
        if name not in replaced and not tied:
            state[name] = tensor
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    fields = settings.to_dict() | {"quantization_config": config, "dtype": "float32"}
    fields |= {"architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    ids = torch.randint(0, SIZES["vocab_size"], (2, 12))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    save_file({"input.input_ids": ids, "logits": logits.contiguous()},
              folder / "expected.safetensors")


def write_all(top):
    def permutation_of(name, columns):
        return torch.randperm(columns, generator=torch.Generator().manual_seed(len(name)))

    bits_of = {"down_proj": 8, "o_proj": 3, "up_proj": 2}

    def mixed(name, weight):
        bits = bits_of.get(name.split(".")[-1], 4)
        return gptq(weight, bits, 32, False, permutation_of(name, weight.shape[1]), "gptq")

    write(top / "gptq", "qwen2",
          {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False,
           "dynamic": {f".*{name}": {"bits": bits} for name, bits in bits_of.items()}}, mixed)

    def zero_bias(name, module):
        return {} if module.bias is not None else {
            name + ".bias": torch.zeros(module.out_features, dtype=torch.float16)}

    write(top / "gptq-v2", "llama",
          {"quant_method": "gptq", "bits": 8, "group_size": 64, "desc_act": False, "sym": True,
           "checkpoint_format": "gptq_v2"},
          lambda name, weight: gptq(weight, 8, 64, True, None, "gptq_v2"), zero_bias)
    write(top / "awq", "gemma3",
          {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm",
           "zero_point": True}, lambda name, weight: awq(weight, 16))

    def groups(form, weights):
        return {"quant_method": "compressed-tensors", "format": form,
                "quantization_status": "compressed", "ignore": ["lm_head"],
                "config_groups": {f"group_{i}": {"targets": ["Linear"], "weights": settings,
                                                 "input_activations": None}
                                  for i, settings in enumerate(weights)
                                  if not settings.get("reordered")}}

    def alternating(form, weights):
        def quantize(name, weight):
            return compressed(weight, form, **weights[sum(map(ord, name)) % len(weights)])
        return quantize

    fp8 = {"num_bits": 8, "type": "float", "symmetric": True}
    float8 = [fp8 | {"strategy": "channel"}, fp8 | {"strategy": "tensor"},
              fp8 | {"strategy": "block", "block_structure": [32, 48]}]
    write(top / "compressed-fp8", "llama", groups("float-quantized", float8),
          alternating("float-quantized", float8),
          lambda name, module: {name + ".input_scale": torch.ones(1)})
    int8 = [{"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}]
    write(top / "compressed-int8", "qwen2", groups("int-quantized", int8),
          alternating("int-quantized", int8))
    int4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}
    packs = [int4 | {"symmetric": True}, int4 | {"symmetric": False},
             int4 | {"symmetric": False, "reordered": True},
             {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}]
    write(top / "compressed-packed", "gemma3", groups("pack-quantized", packs),
          alternating("pack-quantized", packs))

    kinds = [("nf4", True), ("nf4", False), ("fp4", True)]
    write(top / "bitsandbytes-4bit", "llama-wide",
          {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
           "bnb_4bit_use_double_quant": True, "bnb_4bit_quant_storage": "uint8"},
          lambda name, weight: four_bits(weight, *kinds[sum(map(ord, name)) % 3]))
    write(top / "bitsandbytes-8bit", "qwen2",
          {"quant_method": "bitsandbytes", "load_in_8bit": True},
          lambda name, weight: eight_bits(weight))


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent
    write_all(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here)
