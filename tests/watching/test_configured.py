"""What files say of a service beside its counters."""

import json
import shutil
from pathlib import Path

from draftwise.watching.configured import read_side_info

BUNDLE = Path(__file__).parents[2] / "bundle"
LOG = """\
INFO 11-23 07:56:20 [utils.py:297] vLLM API server version 0.32.0
(EngineCore pid=7) INFO 11-23 07:56:21 [core.py:116] Initializing a V1 LLM engine (v0.32.0) with config: model='m', \
compilation_config={'cudagraph_capture_sizes': [1, 2, 4, 64], 'max_cudagraph_capture_size': 64, 'fast_moe': True}
WARNING 11-23 07:56:26 [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner instead.
"""


def test_the_start_log_settles_the_release_and_the_runner_that_a_command_leaves_open(tmp_path: Path) -> None:
    head, setup, log = tmp_path / "head", tmp_path / "serve.sh", tmp_path / "start.log"
    shutil.copytree(BUNDLE / "eagle3", head)
    config = json.loads((head / "config.json").read_text()) | {"max_position_embeddings": 512}
    (head / "config.json").write_text(json.dumps(config))
    spec = json.dumps({"method": "eagle3", "model": str(head), "num_speculative_tokens": 3})
    setup.write_text(f"vllm serve {BUNDLE / 'target'} --max-model-len 2048 --speculative-config '{spec}'\n")
    log.write_text(LOG)
    assert "context-gate" not in (read_side_info(setup, None).rulings or {})  # the newest release takes V2 there
    assert "context-gate" in (read_side_info(setup, log).rulings or {})
    assert read_side_info(setup, log).largest_graph == read_side_info(None, log).largest_graph == 64
    log.write_text(LOG.replace("size': 64", "size': 0"))
    assert read_side_info(setup, log).largest_graph is None  # without any graph, no batch is beyond them
    log.write_text(LOG.splitlines()[0])
    assert read_side_info(setup, log).largest_graph is None
    assert "context-gate" not in (read_side_info(setup, log).rulings or {})
