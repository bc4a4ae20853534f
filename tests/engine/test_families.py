"""A model that the engine does not run is refused before torch, which takes seconds to import."""

import json
import subprocess
import sys

import pytest

_RUN = """
import sys
from draftwise.core import InvalidSetup
from draftwise.verbs.engine import make_config
try:
    make_config(sys.argv[1], None, {})
except InvalidSetup as error:
    print(*(finding.code for finding in error.findings))
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "unsupported-architecture"),
        ({"model_type": "gemma2"}, "unsupported-architecture"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30}, "unsupported-architecture"),
        ({}, "unsupported-architecture"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"model_type": "llama", "compression_config": {"quant_method": "sparseml"}}, "quantized"),
        ({"model_type": "llama"}, ""),
    ],
)
def test_a_model_is_refused_without_torch(config, code, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-c", _RUN, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == code
