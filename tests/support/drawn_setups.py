"""Setups as operators may write them: any flags of a release with any values that its command line can carry."""

import re
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from draftwise.core import Setup, SpecConfig
from draftwise.knowledge.flag_types import takes_none, takes_text
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.vllm import Release
from draftwise.setups import write as writer

NOT_ENGINE = {"model", "model_tag", "config", "speculative_config", "spec_method", "spec_model", "spec_tokens"}
HIDDEN = {"api_key", "hf_token"}
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12)
NUMBERS = st.integers(-(10**6), 10**6)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)


def texts(row: Mapping[str, Any], release: Release) -> st.SearchStrategy[Any]:
    """Return values of a flag that takes one text."""
    kinds = set(re.findall(r"\w+", str(row["type"])))
    has_none = takes_none(row) and not (row.get("choices") and Rulebook(release.version).holds("none-is-no-choice"))
    none = st.none() if has_none else st.nothing()
    if row.get("choices") and not re.search(r"Enum\b|^OptimizationLevel$", str(row["type"])):
        return none | st.sampled_from(row["choices"])
    if "int" in kinds and "lambda" not in kinds:
        return none | NUMBERS
    if "float" in kinds:
        return none | st.floats(allow_nan=False, allow_infinity=False)
    return none | TEXT.filter(lambda text: text != "None")


def values(name: str, row: Mapping[str, Any], release: Release) -> st.SearchStrategy[Any]:
    """Return values that a flag may have been given on a command line."""
    if row["field"] in HIDDEN:
        return st.just("(not shown)")
    if row["kind"] == "switch":
        return st.booleans() if "negation" in row else st.just(True)
    if row["kind"] == "list":
        items = texts(row, release).filter(lambda item: not str(item).startswith(tuple(writer._DASHES)))
        return st.lists(items, min_size=1, max_size=3)
    if row["kind"] == "json":
        plain = TEXT.filter(lambda text: text != "None" and not re.fullmatch(r"\s*\{.*\}\s*", text))
        none = st.none() if takes_none(row) else st.nothing()
        # null for a config stays text, as it is refused there and must not pass for a flag that is not given.
        return none | (OBJECTS | plain if takes_text(row) else JSON.filter(lambda value: value is not None))
    return (
        st.lists(texts(row, release), min_size=1, max_size=3)
        if isinstance(row["default"], list)
        else texts(row, release)
    )


@st.composite
def drawn_setups(draw: st.DrawFn, release: Release) -> Setup:
    flags = {name: row for name, row in release.table("flags").items() if row["field"] not in NOT_ENGINE}
    chosen = draw(st.lists(st.sampled_from(sorted(flags)), unique=True, max_size=6))
    spec = draw(st.none() | OBJECTS)
    return Setup(
        target=draw(st.sampled_from(["m", "/models/a b", "org/Model-8B"])),
        engine="vllm",
        engine_version=str(release),
        spec=None if spec is None else SpecConfig.keep(spec),
        args={flags[name]["field"]: draw(values(name, flags[name], release)) for name in chosen},
        env=draw(st.dictionaries(st.sampled_from(["VLLM_USE_V1", "VLLM_X"]), TEXT, max_size=2)),
        extra_args=draw(st.sampled_from([(), ("--no-such-flag",), ("--no-such-flag", "3", "--nor-this=x")])),
    )
