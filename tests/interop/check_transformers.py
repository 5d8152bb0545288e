#!/usr/bin/env python3
"""Reloads models in transformers that went through this program.

Usage: check_transformers.py PROGRAM [NAME ...]
       (in an environment with torch, transformers >= 5 and tokenizers; NAME: a family, "beside", "trained",
       "finetuned", "quantized")

Each golden family goes from its Hugging Face folder to a checkpoint of this program, or torch_dist, and back; transformers
then loads the folder and must compute the logits of the original, with a config.json of the same meaning. Models that are
trained here must have in transformers the losses of `megatron score`.
Prints a line for each check, and ends with an error if any does not hold.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import ByteLevelBPETokenizer

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
COLLECTION = ROOT.parent / "shared/golden/hf2"
DATA = GOLDEN / "megatron/data"

# Fields of config.json that do not say what the model computes.
WITHOUT_MEANING = {
    "_name_or_path", "architectures", "dtype", "initializer_range", "transformers_version", "use_cache",
    "max_window_layers",  # layer_types counts
    "num_nextn_predict_layers",  # transformers has no such layers; the file says whether there are any
    "expansion_ratio",  # the code of MPT ignores it
    "output_router_logits", "router_aux_loss_coef",  # of transformers' own loss
}


class Failure(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Failure(what)


def logits(folder, ids, dtype=torch.float32):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, attn_implementation="eager")
    # transformers has no layers that predict further tokens.
    further = f"model.layers.{getattr(model.config, 'num_hidden_layers', None)}."
    unexpected = [name for name in report["unexpected_keys"] if not name.startswith(further)]
    expect(not report["missing_keys"] and not unexpected, f"tensors: {report}")
    with torch.no_grad():
        return model.eval()(ids).logits


def differences(left, right):
    """The fields of `left` that `right` has otherwise. It may state more: what `left` leaves to the code."""
    changed = {}
    for name, value in left.items():
        other = right.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            changed |= {f"{name}.{key}": pair for key, pair in differences(value, other).items()}
        elif name not in WITHOUT_MEANING and value is not None and value != other:
            changed[name] = (value, other)
    return changed


def family(program, work, source):
    name = source.name
    formats = ["native", "torch_dist"] if name in ("llama31", "gemma3", "qwen3-moe") else ["native"]
    for spelling in ("config.json", "config.hub.json"):
        if not (source / spelling).exists():
            continue
        folder = work / name / spelling
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes((source / spelling).read_bytes())
        (folder / "model.safetensors").symlink_to(source / "model.safetensors")
        config = transformers.AutoConfig.from_pretrained(folder)
        ids = torch.arange(2 * 20).reshape(2, 20) * 7 % config.vocab_size
        want = logits(folder, ids)
        for form in formats if spelling == "config.json" else ["native"]:
            between, back = (work / name / f"{spelling}-{kind}" for kind in (form, form + "-back"))
            program("convert-checkpoint", "--load-dir", folder, "--save-dir", between, "--saver", form)
            program("convert-checkpoint", "--load-dir", between, "--save-dir", back, "--saver", "hf")
            worst = (logits(back, ids) - want).abs().max().item()
            expect(worst <= 1e-5, f"logits differ by {worst:.1e}")
            changed = differences(config.to_dict(),
                                  transformers.AutoConfig.from_pretrained(back).to_dict())
            expect(not changed, f"{spelling}: {changed}")
            print(f"ok: {name} ({spelling}, {form}): logits differ by {worst:.1e}", flush=True)


def small_model(folder, dtype=torch.float32, size="10GB"):
    """A Llama of `dtype` with a tokenizer, in files of at most `size`."""
    settings = transformers.LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=2)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(settings).to(dtype).save_pretrained(folder, max_shard_size=size)
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(["some text to learn merges from"] * 4, vocab_size=290, show_progress=False,
                                special_tokens=["<s>", "</s>", "<pad>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trainer._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    tokenizer.save_pretrained(folder)
    generation = transformers.GenerationConfig(bos_token_id=0, eos_token_id=[1, 2], pad_token_id=2,
                                               do_sample=True, temperature=0.6, top_p=0.9)
    generation.save_pretrained(folder)
    return tokenizer, generation


def files_beside(program, work):
    """Tokenizer, chat template and generation_config.json travel along; fp16, bf16, shards."""
    here = work / "beside"
    ids = torch.arange(40).reshape(2, 20) * 7 % 300
    for dtype, size in ((torch.float32, "10GB"), (torch.float16, "60KB"), (torch.bfloat16, "60KB")):
        name = str(dtype).removeprefix("torch.")
        folder, between, back = here / name, here / f"{name}-native", here / f"{name}-back"
        tokenizer, generation = small_model(folder, dtype, size)
        program("convert-checkpoint", "--load-dir", folder, "--save-dir", between, "--saver", "native")
        program("convert-checkpoint", "--load-dir", between, "--save-dir", back, "--saver", "hf",
                "--max_shard_size", size, "--tokenizer_name", folder)
        expect((back / "model.safetensors.index.json").exists() == (size != "10GB"), "number of files")
        got = transformers.AutoModelForCausalLM.from_pretrained(back, dtype="auto")
        expect(got.dtype == dtype, f"dtype {got.dtype}")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
        for key, tensor in got.state_dict().items():
            expect(torch.equal(tensor, theirs[key]), f"{name}: {key} differs")
        expect(torch.equal(logits(back, ids), logits(folder, ids)), f"{name}: logits differ")
        again = transformers.AutoTokenizer.from_pretrained(back)
        messages = [{"role": "user", "content": "merges of text"}]
        expect(again.apply_chat_template(messages) == tokenizer.apply_chat_template(messages),
               f"{name}: chat template")
        kept = transformers.GenerationConfig.from_pretrained(back)
        expect(kept.to_diff_dict() == generation.to_diff_dict(), f"{name}: generation_config.json")
        print(f"ok: {name}, {size} a file: tensors, tokenizer, chat template, generation_config.json",
              flush=True)


def worst_logprob(program, work, scored, folder):
    """How much `megatron score` of one model and transformers of another differ."""
    ids = list(range(1, 30))
    (work / "ids.jsonl").write_text(json.dumps({"ids": ids}) + "\n")
    out = program("score", "--load", scored, "--input", work / "ids.jsonl", "--device", "cpu")
    rows = torch.log_softmax(logits(folder, torch.tensor([ids]))[0, :-1].double(), dim=-1)
    want = rows.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    got = torch.tensor(json.loads(out.splitlines()[-1])["logprobs"], dtype=torch.float64)
    worst = (got - want).abs().max().item()
    expect(worst < 1e-5, f"log-probabilities differ by {worst:.1e}")
    return worst


def finetuned(program, work):
    """What finetune writes predicts in transformers what the checkpoint of the run predicts here."""
    here = work / "finetuned"
    small_model(here / "base")
    (here / "texts.txt").write_text("some text to learn from, line by line\n" * 200)
    program("finetune", "--model_name_or_path", here / "base", "--train_file", here / "texts.txt",
            "--output_dir", here / "out", "--block_size", 32, "--per_device_train_batch_size", 4,
            "--max_train_steps", 4, "--learning_rate", 1e-3, "--device", "cpu")
    ids = torch.arange(20).reshape(1, 20)
    expect(not torch.equal(logits(here / "out", ids), logits(here / "base", ids)), "nothing was learnt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(here / "out")
    expect(tokenizer.chat_template is not None, "chat template")
    worst = worst_logprob(program, work, here / "out/checkpoints", here / "out")
    print(f"ok: finetuned: log-probabilities differ by {worst:.1e}", flush=True)


def quantized(program, work):
    """A quantized folder, written plainly, has in transformers the logits of its dequantized model, and LoRA trains it."""
    for source in sorted((GOLDEN / "quantized").glob("*/config.json")):
        source = source.parent
        here = work / "quantized" / source.name
        program("convert-checkpoint", "--load-dir", source, "--save-dir", here / "hf", "--saver", "hf")
        expect("quantization_config" not in (here / "hf/config.json").read_text(), "is still quantized")
        stored = load_file(source / "expected.safetensors")
        worst = (logits(here / "hf", stored["input.input_ids"]) - stored["logits"]).abs().max().item()
        expect(worst < 1e-4, f"{source.name}: logits differ by {worst:.1e}")
        (here / "texts.txt").write_text("1 2 3 5 8 13 21 34 55 12\n" * 100)
        program("finetune", "--model_name_or_path", source, "--train_file", here / "texts.txt", "--output_dir",
                here / "out", "--block_size", 16, "--per_device_train_batch_size", 4, "--max_train_steps", 2,
                "--lora-rank", 4, "--lora-alpha", 8, "--lora-target-modules", "linear_proj", "--merge_lora",
                "--learning_rate", 1e-3, "--device", "cpu",
                "--tokenizer-type", "NullTokenizer", "--vocab-size", 66)
        learnt = (logits(here / "out", stored["input.input_ids"]) - stored["logits"]).abs().max().item()
        expect(1e-4 < learnt < 1, f"{source.name}: logits after LoRA differ by {learnt:.1e}")
        print(f"ok: {source.name}: logits differ by {worst:.1e}, by {learnt:.1e} after LoRA", flush=True)


COMMON = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
          "--micro-batch-size 2 --global-batch-size 4 --lr 1e-3 --lr-decay-iters 10 --train-iters 4 --eval-iters 0 "
          "--split 90,5,5 --save-interval 4 --hidden-dropout 0 --attention-dropout 0 --device cpu "
          "--make-vocab-size-divisible-by 1").split()
ROPE = ("--normalization RMSNorm --position-embedding-type rope --swiglu --disable-bias-linear "
        "--untie-embeddings-and-output-weights --ffn-hidden-size 96 ").split()
GROUPS = "--group-query-attention --num-query-groups 2".split()
STYLES = {
    "gpt2": "--position-embedding-type learned_absolute".split(),
    "llama": ROPE + GROUPS,
    "qwen2": ROPE + GROUPS + ["--add-qkv-bias"],
    "qwen3": ROPE + GROUPS + ["--qk-layernorm"],
    "mixtral": ROPE + GROUPS + "--num-experts 4 --moe-router-topk 2".split(),
    "gpt_neox": ("--position-embedding-type rope --rotary-percent 0.5 --untie-embeddings-and-output-weights "
                 "--ffn-hidden-size 128").split(),
}


def trained(program, work):
    """A run trained here, exported, predicts in transformers what it predicts here."""
    words = COMMON + list(map(str, ["--data-path", DATA / "corpus_text_document", "--vocab-file",
                                    DATA / "vocab.json", "--merge-file", DATA / "merges.txt", "--data-cache-path",
                                    work / "cache"]))
    for model_type, style in STYLES.items():
        run = work / f"run-{model_type}"
        program("pretrain-gpt", *words, *style, "--save", run)
        program("convert-checkpoint", "--load-dir", run, "--save-dir", run / "hf", "--saver", "hf")
        config = transformers.AutoConfig.from_pretrained(run / "hf")
        expect(config.model_type == model_type, f"{model_type} became {config.model_type}")
        worst = worst_logprob(program, work, run, run / "hf")
        print(f"ok: trained as {model_type}: log-probabilities differ by {worst:.1e}", flush=True)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    binary = pathlib.Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:]

    def program(*words):
        result = subprocess.run([binary, *map(str, words)], capture_output=True, text=True)
        expect(result.returncode == 0, f"{' '.join(map(str, words))}\n{result.stderr}")
        return result.stdout

    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}")
    checks = {"beside": files_beside, "trained": trained, "finetuned": finetuned,
              "quantized": quantized}
    if not COLLECTION.exists():
        print(f"not run: families, no models in {COLLECTION}")
    for source in sorted([*(GOLDEN / "hf").glob("*/config.json"), *COLLECTION.glob("*/config.json")]):
        if "ForCausalLM" not in source.read_text() and "LMHeadModel" not in source.read_text():
            continue
        checks[source.parent.name] = lambda program, work, folder=source.parent: family(
            program, work, folder)
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        for name, check in checks.items():
            if wanted and name not in wanted:
                continue
            try:
                check(program, pathlib.Path(directory))
            except Exception as error:  # also one of transformers: the other checks go on
                failures += 1
                print(f"FAILED: {name}: {error}", flush=True)
    if failures:
        sys.exit(f"{failures} of the checks failed")


if __name__ == "__main__":
    main()
