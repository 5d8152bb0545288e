#!/usr/bin/env python3
"""Compares what lm_eval measures of `megatron serve` with what it measures of transformers.

Usage: check_lm_eval.py MEGATRON [FLAG ..]   (flags of serve; with lm_eval[api,hf] >= 0.4.9)

Makes a tiny random model and local tasks, serves the model and runs lm_eval on the CPU, without a
network: log-likelihoods (choices, perplexity) and generated texts by local-completions, a chat by
local-chat-completions. Ends with an error at the first number that differs.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import lm_eval  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

DATA = pathlib.Path(__file__).parent.parent / "golden/megatron/data"
WORDS = "the river bird stone light water small old green house tree night day wind".split()
TEMPLATE = ("{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}")

TASKS = {
    "tiny_choice": """
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "tiny_perplexity": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
""",
    "tiny_answer": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["e"], max_gen_toks: 12, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match}]
""",
}


def make_model(folder):
    vocab, merges = (str(DATA / name) for name in ("vocab.json", "merges.txt"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.ByteLevelBPETokenizer(vocab, merges)._tokenizer,
        eos_token="<|endoftext|>", model_max_length=128)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    eod = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        initializer_range=0.3, bos_token_id=eod, eos_token_id=eod, pad_token_id=eod))
    model.save_pretrained(folder)


def make_tasks(folder):
    docs = [{"question": " ".join(WORDS[(i * k + k) % len(WORDS)] for k in range(1, 4 + i % 9)),
             "choices": [" " + WORDS[(i + k) % len(WORDS)] + " " * (k == 2) + "stone" * (k == 2)
                         for k in range(4)], "answer": i % 4} for i in range(12)]
    data = folder / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
            f"test_split: test\n{text}")


def measured(manager, tasks, model, args, **more):
    found = lm_eval.simple_evaluate(model=model, model_args=args, tasks=tasks, task_manager=manager,
                                    log_samples=True, bootstrap_iters=0, **more)
    results = {task: {name: value for name, value in found["results"][task].items()
                      if isinstance(value, float) and "stderr" not in name} for task in tasks}
    responses = {task: [sample["resps"] for sample in
                        sorted(found["samples"][task], key=lambda one: one["doc_id"])]
                 for task in tasks}
    return results, responses


def differs(a, b):
    if isinstance(a, (list, tuple)):
        return len(a) != len(b) or any(map(differs, a, b))
    if isinstance(a, bool) or isinstance(a, str):
        return a != b
    return abs(a - b) > 1e-4 * max(1, abs(b))


def compare(name, served, expected):
    for task, values in expected[0].items():
        for metric, value in values.items():
            assert not differs(served[0][task][metric], value), (name, task, metric, served[0],
                                                                 value)
        texts = {str(one) for one in expected[1][task]}
        assert len(texts) > len(expected[1][task]) // 2, (name, task, texts)
        for i, (ours, theirs) in enumerate(zip(served[1][task], expected[1][task])):
            assert not differs(ours, theirs), (name, task, i, ours, theirs)
        shown = ", ".join(f"{metric} {value:.6g}" for metric, value in values.items())
        print(f"ok: {name}, {task}: {shown}; {len(texts)} different responses, as "
              f"{str(expected[1][task][-1])[:80]}", flush=True)


def main():
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        model = folder / "model"
        make_model(model)
        make_tasks(folder)
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        server = subprocess.Popen([sys.argv[1], "serve", "--load", str(model), "--port", "0",
                                   "--device", "cpu", "--num-threads", "2",
                                   "--served-model-name", "tiny"] + sys.argv[2:],
                                  stdout=subprocess.PIPE, text=True)
        try:
            line = next(line for line in server.stdout if line.startswith("serving "))
            url = line.split(" at ")[1].split()[0]
            urllib.request.urlopen(url + "/health").read()
            args = f"model=tiny,tokenizer={model},max_length=128,num_concurrent=2,max_retries=1"
            texts = list(TASKS)
            hf = f"pretrained={model},dtype=float32,max_length=128"
            compare("local-completions",
                    measured(manager, texts, "local-completions",
                             f"base_url={url}/v1/completions," + args),
                    measured(manager, texts, "hf", hf, device="cpu", batch_size=1))
            compare("local-chat-completions",
                    measured(manager, ["tiny_answer"], "local-chat-completions",
                             f"base_url={url}/v1/chat/completions," + args,
                             apply_chat_template=True),
                    measured(manager, ["tiny_answer"], "hf", hf, device="cpu", batch_size=1,
                             apply_chat_template=True))
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    main()
