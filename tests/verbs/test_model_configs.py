"""A config.json and an index are enough, wherever they are; nothing is fetched unless it was asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from draftwise.core import InvalidRequest, InvalidSetup, UnreadableSource
from draftwise.verbs.check import CheckResult, check
from draftwise.verbs.deploy import deploy
from draftwise.verbs.pick import pick
from draftwise.verbs.size import size
from draftwise.verbs.upgrade import upgrade

NAME = "some-lab/Unheard-Of-9B"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
MTP = {"method": "mtp", "num_speculative_tokens": 1}
CONFIG = {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "n_routed_experts": 128, "num_nextn_predict_layers": 1,
    "max_position_embeddings": 131072, "vocab_size": 151552, "torch_dtype": "bfloat16",
}  # fmt: skip
WHOLE = {"weight_map": {"model.layers.0.mlp.up_proj.weight": "a.safetensors",
                        "model.layers.46.eh_proj.weight": "a.safetensors",
                        "model.layers.46.enorm.weight": "a.safetensors",
                        "model.layers.46.hnorm.weight": "a.safetensors"}}  # fmt: skip
LOST = {"weight_map": {"model.layers.0.mlp.up_proj.weight": "a.safetensors"}}


class Hub(BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes | int]] = {}
    seen: ClassVar[list[tuple[str, str]]] = []
    address: ClassVar[str]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("authorization", "")))
        found = self.files.get(self.path, 404)
        self.send_response(found if isinstance(found, int) else 200)
        self.end_headers()
        if isinstance(found, bytes):
            self.wfile.write(found)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    Hub.files.clear()
    Hub.seen.clear()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    Hub.address = f"http://127.0.0.1:{server.server_port}"
    yield Hub
    server.shutdown()
    server.server_close()


def put(name: str, **files: Any) -> None:
    for file, content in files.items():
        spelled = {"config": "config.json", "index": "model.safetensors.index.json"}[file]
        Hub.files[f"/{name}/resolve/main/{spelled}"] = json.dumps(content).encode()


def codes(result: CheckResult) -> set[str]:
    return {finding.code for each in result.judgements for finding in each.findings}


def write(folder: Path, config: Any = CONFIG, index: Any = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def ask(**options: Any) -> CheckResult:
    return check(NAME, vllm="0.33.0", speculative_config=MTP, **options)


def test_nothing_is_fetched_unless_it_was_asked_for(hub: type[Hub]) -> None:
    put(NAME, config=CONFIG)
    assert "target-not-here" in codes(ask())
    assert hub.seen == []


def test_the_hub_brings_the_config_and_the_index(hub: type[Hub]) -> None:
    put(NAME, config=CONFIG, index=LOST)
    found = codes(ask(hub=True))
    assert "target-not-here" not in found
    assert "mtp-tensors-missing" in found
    assert [path.rpartition("/")[2] for path, _ in hub.seen] == ["config.json", "model.safetensors.index.json"]


def test_known_models_and_directories_are_not_asked_for(hub: type[Hub], tmp_path: Path) -> None:
    check("Qwen/Qwen3-8B", vllm="0.33.0", speculative_config={"method": "ngram"}, hub=True)
    check(str(write(tmp_path / "m")), vllm="0.33.0", speculative_config=MTP, hub=True)
    assert hub.seen == []


def test_a_drafter_is_fetched_too_and_once_for_several_releases(hub: type[Hub]) -> None:
    put("lab/head", config={**CONFIG, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"})
    spec = {"method": "eagle3", "model": "lab/head", "num_speculative_tokens": 1}
    result = check("Qwen/Qwen3-8B", vllm=["0.32.0", "0.33.0"], speculative_config=spec, hub=True)
    assert "drafter-not-here" not in codes(result)
    assert sum(path.endswith("/config.json") for path, _ in hub.seen) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_hub_that_does_not_give_it_ends_with_what_to_do(hub: type[Hub], status: int) -> None:
    hub.files[f"/{NAME}/resolve/main/config.json"] = status
    with pytest.raises(UnreadableSource) as raised:
        ask(hub=True)
    assert raised.value.findings[0].code == "config-not-fetched"
    assert ("HF_TOKEN" in raised.value.findings[0].fix) == (status in (401, 403))


def test_a_hub_that_is_not_there_ends_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for endpoint in ("http://127.0.0.1:1", "nonsense", "http://[", "http://127.0.0.1:99999"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(UnreadableSource):
            ask(hub=True)


def test_a_page_that_is_no_config_is_refused(hub: type[Hub]) -> None:
    hub.files[f"/{NAME}/resolve/main/config.json"] = b"<html>Sign in</html>"
    with pytest.raises(UnreadableSource):
        ask(hub=True)


def test_a_token_goes_to_the_hub_and_nowhere_else(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    put(NAME, config=CONFIG)
    ask(hub=True)
    assert {token for _, token in hub.seen} == {"Bearer secret"}
    hub.seen.clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    ask(config_from=f"{hub.address}/{NAME}/resolve/main")
    assert {token for _, token in hub.seen} == {""}


@pytest.mark.parametrize("spell", ["directory", "config.json", "other.json", "url", "url of the file"])
def test_a_config_is_taken_from_wherever_it_is(hub: type[Hub], tmp_path: Path, spell: str) -> None:
    folder = write(tmp_path / "m")
    (tmp_path / "other.json").write_text(json.dumps(CONFIG))
    put("x", config=CONFIG)
    address = f"{hub.address}/x/resolve/main"
    where = {
        "directory": folder, "config.json": folder / "config.json", "other.json": tmp_path / "other.json",
        "url": address, "url of the file": f"{address}/config.json",
    }[spell]  # fmt: skip
    result = ask(config_from=where)
    assert codes(result).isdisjoint({"target-not-here", "target-partly-known"})
    assert result.judgements[0].target == NAME


def test_a_config_that_is_not_there_or_for_several_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSource):
        ask(config_from=tmp_path / "nowhere")
    with pytest.raises(InvalidRequest):
        check([NAME, "Qwen/Qwen3-8B"], config_from=write(tmp_path / "m"))


@pytest.mark.parametrize(("index", "lost"), [(WHOLE, False), (LOST, True)])
def test_an_index_without_shards_tells_of_lost_modules(tmp_path: Path, index: Any, lost: bool) -> None:
    found = codes(check(str(write(tmp_path / "m", index=index)), vllm="0.33.0", speculative_config=MTP))
    assert ("mtp-tensors-missing" in found) == lost
    assert found.isdisjoint({"shards-missing", "weights-not-inspected"})


def test_a_checkpoint_that_lacks_some_of_its_shards_is_still_incomplete(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", index={"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})
    (folder / "a.safetensors").write_bytes(b"")
    assert "shards-missing" in codes(check(str(folder), vllm="0.33.0", speculative_config=MTP))


def test_an_upgrade_is_judged_by_it_too(tmp_path: Path) -> None:
    result = upgrade(NAME, before="0.32.0", after="0.33.0", speculative_config=MTP, config_from=write(tmp_path / "m"))
    assert "target-not-here" not in {finding.code for each in result.setups for finding in each.after.findings}


DENSE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("by_hub", [True, False])
def test_size_pick_and_deploy_take_them_too(hub: type[Hub], tmp_path: Path, by_hub: bool):
    put(NAME, config=DENSE)
    asked: dict[str, Any] = {"hub": True} if by_hub else {"config_from": write(tmp_path / "c", DENSE)}
    known = size("Qwen/Qwen3-8B", gpu="H200")
    assert size(NAME, gpu="H200", **asked).without_drafter.kv_tokens == pytest.approx(
        known.without_drafter.kv_tokens, rel=0.01
    )
    assert pick(NAME, gpu="H200", **asked).ranked[0].estimate is not None
    result = deploy(
        NAME, vllm="0.32.0", gpu="H200", to="compose", out=tmp_path / "d", speculative_config=NGRAM, **asked
    )
    assert not any(each.code == "target-not-here" for each in result.answer.limits)
    assert NAME in (tmp_path / "d" / "spec.yaml").read_text()
    assert str(tmp_path / "c") not in (tmp_path / "d" / "spec.yaml").read_text()
    assert len(hub.seen) == (6 if by_hub else 0)


def test_without_being_asked_they_fetch_nothing(hub: type[Hub], tmp_path: Path):
    put(NAME, config=DENSE)
    with pytest.raises(InvalidSetup, match=r"The layer sizes of the target .* are unknown"):
        size(NAME, gpu="H200")
    assert pick(NAME, gpu="H200").ranked[0].memory is None
    result = deploy(NAME, vllm="0.32.0", gpu="H200", to="compose", out=tmp_path / "d", speculative_config=NGRAM)
    assert hub.seen == []
    assert any(each.code == "target-not-here" for each in result.answer.limits)
