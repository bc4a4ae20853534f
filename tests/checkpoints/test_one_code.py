"""A head's fault has one code, whoever finds it: `inspect`, the embedded engine, and training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.support.crafted import BUNDLE, copy_changed, look

from draftwise.core import InvalidSetup
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.proposers.dflash import load_dflash
from draftwise.engine.proposers.eagle3 import load_eagle3

TARGET = BUNDLE / "target"
LOADERS: dict[str, Callable[[Path, CausalLM], object]] = {
    "eagle3": load_eagle3,
    "p_eagle": load_eagle3,
    "dflash": lambda path, target: load_dflash(path, target, max_model_len=64),
}


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return load_model(TARGET, dtype="bfloat16", device="cpu")


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("eagle3", {"target_hidden_size": 256}, "hidden-size-differs"),
        ("eagle3", {"vocab_size": 5000}, "head-vocabulary-differs"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, "layer-ids-out-of-range"),
        ("p_eagle", {"ptd_token_id": 4096}, "mask-token-out-of-range"),
        ("dflash", {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 3, 8]}}, "layer-ids-out-of-range"),
        ("dflash", {"dflash_config": {"mask_token_id": 5000, "target_layer_ids": [1]}}, "mask-token-out-of-range"),
        ("dflash", {"dflash_config": {"target_layer_ids": [1, 3, 6]}}, "mask-token-missing"),
    ],
)
def test_what_is_inspected_and_what_is_loaded(
    tmp_path: Path, target: CausalLM, name: str, changes: dict[str, Any], code: str
) -> None:
    folder = copy_changed(BUNDLE / name, tmp_path / name, config=lambda config: config.update(changes))
    assert code in look(folder)
    save_file(load_file(BUNDLE / name / "model.safetensors"), folder / "model.safetensors")
    with pytest.raises(InvalidSetup) as caught:
        LOADERS[name](folder, target)
    assert [finding.code for finding in caught.value.findings] == [code]


def test_a_target_too_shallow_for_the_usual_layers(tmp_path: Path) -> None:
    def unstated(config: dict[str, Any]) -> None:
        del config["eagle_aux_hidden_state_layer_ids"]

    head = copy_changed(BUNDLE / "eagle3", tmp_path / "eagle3", config=unstated)
    shallow = copy_changed(TARGET, tmp_path / "shallow", config=lambda config: config.update(num_hidden_layers=4))
    assert "layer-ids-collapse" in look(head, shallow)
    save_file(load_file(BUNDLE / "eagle3" / "model.safetensors"), head / "model.safetensors")
    with pytest.raises(InvalidSetup) as caught:
        load_eagle3(head, load_model(shallow, dtype="bfloat16", device="cpu", load_format="dummy"))
    assert [finding.code for finding in caught.value.findings] == ["layer-ids-collapse"]
