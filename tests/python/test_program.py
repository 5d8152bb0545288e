import json
import urllib.request

import pytest

import megatron_cpp as mg


def test_commands_return_their_output():
    assert "megatron" in mg.run("env")
    with pytest.raises(mg.ConfigError, match="is not a command"):
        mg.run("no-such-command")


def test_plan_is_a_dict(tiny):
    assert isinstance(mg.plan(tiny), dict)


def test_convert(checkpoint, tmp_path):
    mg.convert(checkpoint, tmp_path / "hf", saver="hf")
    with mg.Model.from_pretrained(checkpoint) as model, mg.Model.from_pretrained(tmp_path / "hf") as again:
        width = again.logits([1]).shape[1]
        assert (model.logits([1, 2]).numpy()[:, :width] == again.logits([1, 2]).numpy()).all()


def test_a_server_answers(checkpoint):
    model = mg.Model.from_pretrained(checkpoint)
    with mg.Server(model) as server:
        with pytest.raises(mg.MegatronError, match="served"):
            model.logits([1])
        request = urllib.request.Request(
            server.url + "/v1/completions", json.dumps({"model": server.name, "prompt": [1, 2], "max_tokens": 2}).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["choices"]
    assert model.logits([1]).shape[0] == 1
    server.close()
    with pytest.raises(mg.ClosedError):
        server.url
    with pytest.raises(mg.ConfigError):
        mg.Server(model, max_running_requests=0)
    with pytest.raises(mg.MegatronError):
        mg.Server(model, host="256.1.1.1")
    with mg.Server(model):
        pass
