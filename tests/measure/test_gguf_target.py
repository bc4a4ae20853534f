"""A GGUF file as what is measured: known before a server starts, and refused then if it cannot be read."""

from pathlib import Path

import pytest
from tests.support.made_gguf import LLAMA, write_gguf

from draftwise.core import Arm, InvalidSetup, LaunchOptions, Setup
from draftwise.measure.run_context import build_context


def describe(file: Path):
    arm = Arm(name="plain", setup=Setup(target=str(file), engine="draftwise"))
    return build_context([arm], notes={"hardware": "x"}, thresholds={}, launch=LaunchOptions()).model


def test_the_model_of_a_gguf_file_is_described(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", LLAMA, {"token_embd.weight": ("F32", (64, 32), bytes(8192))})
    model = describe(file)
    assert (model.name, model.architecture, model.parameters) == ("m.gguf", "LlamaForCausalLM", 64 * 32)
    longer = write_gguf(
        tmp_path / "n.gguf",
        {**LLAMA, "llama.context_length": 256},
        {"token_embd.weight": ("F32", (64, 32), bytes(8192))},
    )
    assert describe(longer).config_sha256 != model.config_sha256


def test_a_truncated_file_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", LLAMA, {"token_embd.weight": ("F32", (64, 32), bytes(8192))})
    file.write_bytes(file.read_bytes()[:-4000])
    with pytest.raises(InvalidSetup, match=r"is cut short: tensor .* Download the file again"):
        describe(file)
