"""A checkpoint without weights, and a server of a fake engine over it."""

import json
import shutil

import pytest
from tests.support.fake_engine import FakeEngine
from tests.support.serving import serving

from draftwise.serve.calls import Defaults


@pytest.fixture(scope="session")
def checkpoint(tiny_target, tmp_path_factory):
    """Tokenizer, chat template and generation defaults."""
    directory = tmp_path_factory.mktemp("serve")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_target / name, directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 256, "temperature": 0.6}))
    return directory


@pytest.fixture(scope="module")
def shared(checkpoint):
    """One server for the tests that leave nothing behind."""
    with serving(FakeEngine(checkpoint), defaults=Defaults.from_checkpoint(checkpoint)) as server:
        yield server
