from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from catalogue.transformers_types import classes_by_backend, describe, find_arguments, write

import draftwise.knowledge


class Renamed:
    attribute_map: ClassVar = {
        "num_attention_heads": "n_head", "hidden_size": "n_embd", "num_experts": "num_local_experts", "n_words": "x",
    }  # fmt: skip
    vocab_size = 50257
    num_attention_heads = 12
    max_position_embeddings = None


class Scaled:
    def __init__(self, rope_type: str = "yarn") -> None:
        self.rope_parameters = {"rope_type": rope_type, "factor": 32.0, "rope_theta": 1e4}


class Unscaled(Scaled):
    def __init__(self) -> None:
        super().__init__("llama3")


class Refusing:
    attribute_map: ClassVar = {"vocab_size": "n_words"}

    def __init__(self) -> None:
        raise ImportError("a part is missing")


def test_a_type_is_described_by_what_its_class_fills_in() -> None:
    assert describe(Renamed, "RenamedModel") == {
        "rename": {"num_attention_heads": "n_head", "hidden_size": "n_embd"},
        "vocab_size": 50257,
        "num_attention_heads": 12,
        "model_class": "RenamedModel",
    }
    assert describe(Scaled, None) == {"rope_parameters": {"rope_type": "yarn", "factor": 32.0}}
    assert describe(Unscaled, None) == {}


def test_a_class_that_cannot_be_made_fills_in_nothing() -> None:
    assert describe(Refusing, "R") == {"rename": {"vocab_size": "n_words"}, "model_class": "R"}


class Padded:
    def __init__(self, padded_vocab_size: int = 65024, seq_length: int = 2048, hidden_size: int = 1) -> None:
        self.vocab_size, self.hidden_size = padded_vocab_size, hidden_size
        self.max_position_embeddings = seq_length


def test_an_argument_of_another_name_is_found_by_what_it_sets() -> None:
    names = {"vocab_size": "padded_vocab_size", "max_position_embeddings": "seq_length"}
    assert find_arguments(Padded) == names


def _model(compatible: bool, settable: bool) -> Any:
    methods = {"is_backend_compatible": lambda: compatible, "_can_set_attn_implementation": lambda: settable}
    return type("Model", (), {name: staticmethod(method) for name, method in methods.items()})


def test_classes_are_sorted_by_what_the_backend_asks_of_them() -> None:
    models = {"B": _model(True, False), "A": _model(True, True), "C": _model(False, True), "D": _model(False, False)}
    assert classes_by_backend(models) == (["A", "B"], ["C"])


def test_the_file_in_the_package_is_as_it_would_be_written(tmp_path: Path) -> None:
    present = Path(draftwise.knowledge.__file__).parent / "data" / "transformers.json"
    write(tmp_path / "again.json", json.loads(present.read_text(encoding="utf-8")))
    assert (tmp_path / "again.json").read_bytes() == present.read_bytes()
