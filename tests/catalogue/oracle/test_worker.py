"""The worker goes on where it was stopped, and past a case that kills its process; vLLM is a stand-in here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).parents[3] / "catalogue" / "oracle" / "worker.py"

STAND_IN = """
import os, sys, types
def prepare(platform): pass
vllm = types.ModuleType("vllm"); vllm.__path__ = []
def module(name, **content):
    made = types.ModuleType(name); made.__path__ = []; made.__dict__.update(content); sys.modules[name] = made
class Parser:
    def __init__(self, prog): pass
    def parse_args(self, line): return line
class Args:
    @staticmethod
    def add_cli_args(parser): return parser
    @classmethod
    def from_cli_args(cls, line): return cls(line)
    def __init__(self, line): self.line = line
    def create_engine_config(self, usage_context):
        if "deadly" in self.line: os._exit(7)
        raise ValueError("not today")
class Context: OPENAI_API_SERVER = "server"
sys.modules["vllm"] = vllm
module("vllm.engine"); module("vllm.engine.arg_utils", AsyncEngineArgs=Args)
module("vllm.usage"); module("vllm.usage.usage_lib", UsageContext=Context)
module("vllm.utils"); module("vllm.utils.argparse_utils", FlexibleArgumentParser=Parser)
module("vllm.logger")
"""


def run(folder: Path, targets: list[str]) -> list[dict[str, object]]:
    """Run the worker over a case for each target and return its answers."""
    (folder / "here").mkdir(exist_ok=True)
    (folder / "here" / "worker.py").write_text(WORKER.read_text())
    (folder / "here" / "surroundings.py").write_text(STAND_IN)
    cases = [{"id": str(i), "target": target, "spec": {"method": "ngram"}} for i, target in enumerate(targets)]
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    subprocess.run(
        [sys.executable, "here/worker.py", "--cases", "cases.jsonl", "--out", "out.jsonl", "--models", "."],
        cwd=folder, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": ""}, timeout=60,
    )  # fmt: skip
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_a_case_that_kills_the_process_is_recorded_and_the_rest_is_answered(tmp_path: Path) -> None:
    answers = run(tmp_path, ["one", "deadly", "three"])
    assert [answer["id"] for answer in answers] == ["0", "1", "2"]
    assert answers[1] == {"id": "1", "crashed": 7}
    assert answers[0]["exception"] == answers[2]["exception"] == "ValueError"
    assert answers[2]["stage"] == "engine config"


def test_answers_that_are_there_are_kept_and_a_torn_line_is_answered_again(tmp_path: Path) -> None:
    kept = json.dumps({"id": "0", "accepted": True, "by": "an earlier run"})
    (tmp_path / "out.jsonl").write_text(kept + "\n" + '{"id": "1", "acc')
    answers = run(tmp_path, ["one", "two"])
    assert answers[0]["by"] == "an earlier run"
    assert answers[1] == {"id": "1", "accepted": False, "exception": "ValueError", "stage": "engine config",
                          "message": "not today", "raised_in": "", "warnings": []}  # fmt: skip
