"""Parameters counted from config.json, compared with those that a model's card or name states."""

from __future__ import annotations

import re

import pytest

from draftwise.core import InvalidSetup
from draftwise.knowledge.model_types import find_matrices, types_with
from draftwise.knowledge.models import KnownModel, read_models
from draftwise.plan.size.decoder_parts import decoder_parts
from draftwise.plan.size.shapes import read_shape, read_text_config
from draftwise.plan.size.weight_parts import elements

_BILLIONS = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[Bb](?![a-z])")


def stated(model: KnownModel) -> float | None:
    """Return a model's parameters; None where neither its card nor its name tells, or its name tells active ones."""
    if model.params:
        return float(model.params)
    found = _BILLIONS.search(model.id.rpartition("/")[2])
    return float(found[1]) * 1e9 if found else None


def counted(model: KnownModel) -> float | None:
    """Return the parameters by config.json; None for a model type of which `size` gives no number."""
    try:
        config = read_text_config(model.config)
        known = config.get("model_type") in types_with("known")
        return elements(decoder_parts(config, read_shape(model.config))) if known else None
    except InvalidSetup:
        return None


PAIRS = [(model.id, count, told) for model in read_models() if (told := stated(model)) and (count := counted(model))]


def test_most_models_tell() -> None:
    assert len(PAIRS) >= 100
    without_gate = {str(model.config["model_type"]) for model in read_models() if find_matrices(model.config) == 2}
    told = {name for name, *_ in PAIRS}
    assert len(without_gate) >= 9
    assert all(
        any(model.id in told for model in read_models() if model.config["model_type"] == kind) for kind in without_gate
    )


@pytest.mark.parametrize(("name", "count", "told"), PAIRS, ids=[name for name, *_ in PAIRS])
def test_a_config_gives_the_parameters_that_the_card_or_the_name_states(name: str, count: float, told: float) -> None:
    """A vision tower, which is not counted, is up to 15 % of a small model; names are rounded by up to 6 %."""
    assert 0.85 < count / told < 1.06, name


@pytest.mark.parametrize(("key", "value"), [
    ("moe_latent_size", "wide"), ("moe_latent_size", -5), ("moe_latent_size", 10**30), ("layers_block_type", "moe"),
])  # fmt: skip
def test_what_no_model_can_have_gives_no_size(key: str, value: object) -> None:
    (model,) = (each for each in read_models() if each.id == "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16")
    with pytest.raises(InvalidSetup, match=key):
        read_text_config({**model.config, key: value})
