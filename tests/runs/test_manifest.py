"""Arms as the JSON rows of a manifest, and back."""

import json

from draftwise.core import Arm, Setup, SpecConfig
from draftwise.core.documents import from_json, to_json
from draftwise.runs.manifest import ArmRow


def test_an_arm_is_read_back_with_its_whole_setup() -> None:
    setup = Setup(
        target="/models/m",
        engine="vllm",
        engine_version="0.33.0",
        spec=SpecConfig(method="ngram", num_speculative_tokens=3, options={"prompt_lookup_max": 4}),
        args={"tensor_parallel_size": 2, "served_model_name": ["a"], "compilation_config": {"level": 3}},
        env={"VLLM_X": "1"},
        extra_args=("--no-such-flag", "1"),
    )
    for arm in (Arm(name="a", setup=setup), Arm(name="plain", url="http://h:1").with_spec(None)):
        assert from_json(ArmRow, json.loads(json.dumps(to_json(ArmRow.of(arm))))).to_arm({}) == arm
