"""The model class of lm-evaluation-harness, on a task of counting numbers that needs no download."""

import json

import numpy as np
import pytest

import megatron_cpp as mg

lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance  # noqa: E402

from megatron_cpp.lm_eval import MegatronLM  # noqa: E402


@pytest.fixture(scope="module")
def model(checkpoint):
    return MegatronLM(checkpoint, max_length=16)


def request(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_log_likelihoods(model):
    pairs = [("1 2 3", " 4 5"), ("7", " 8")]
    found = model.loglikelihood([request("loglikelihood", *pair) for pair in pairs])
    for (context, continuation), (likelihood, is_greedy) in zip(pairs, found):
        ids = [int(word) for word in (context + continuation).split()]
        count = len(continuation.split())
        expected = model.model.log_probabilities(ids)[-count:]
        assert likelihood == pytest.approx(sum(expected), rel=1e-4)
        greedy = model.model.logits(ids[:-1]).numpy()[-count:].argmax(-1)
        assert is_greedy == (list(greedy) == ids[-count:])


def test_rolling_log_likelihoods(model):
    text = " ".join(str(i % 50) for i in range(40))  # longer than max_length
    (likelihood,) = model.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    assert np.isfinite(likelihood) and likelihood < -40


def test_texts(model):
    options = {"until": [" 5 5 5"], "max_gen_toks": 4}
    (text,) = model.generate_until([request("generate_until", "1 2 3", options)])
    greedy = model.model.generate([1, 2, 3], max_new_tokens=4, top_k=1)
    assert text == model.model.decode([one for one in greedy.new_tokens if one not in model.model.end_tokens])


def test_a_task_of_the_harness(model, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps({"question": f"{i} {i + 1}", "choices": [str(i + 2), str(i + 9)], "answer": 0})
                              for i in range(8)))
    task = tmp_path / "counting.yaml"
    task.write_text(f"""
task: counting
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
""")
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tmp_path))
    result = lm_eval.simple_evaluate(model, tasks=["counting"], task_manager=manager, bootstrap_iters=0)
    expected = np.mean([model.model.log_probabilities([i, i + 1, i + 2])[-1] >
                        model.model.log_probabilities([i, i + 1, i + 9])[-1] for i in range(8)])
    assert result["results"]["counting"]["acc,none"] == expected
