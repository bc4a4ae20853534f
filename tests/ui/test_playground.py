"""The playground's archive, without a browser: it answers as the package does, and lacks nothing."""

import json
import re
import subprocess
import sys

import pytest
from docs.playground.__main__ import build, list_files

from draftwise.verbs.pages.answers import answer
from tests.support.source_fixtures import find_fixtures

COMMAND = """vllm serve Qwen/Qwen3-8B --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'"""
ASKED = (
    ("upgrade", {"sources": COMMAND, "before": "0.19.1", "after": "newest"}),
    (
        "size",
        {
            "target": "Qwen/Qwen3-8B",
            "gpu": "H100-SXM",
            "speculative_config": '{"method": "eagle3", "model": "x", "num_speculative_tokens": 3}',
        },
    ),
    ("explain", {"name": "medusa"}),
    *(
        ("pick", {"target": "Qwen/Qwen3-8B", "gpu": gpu, "workload": "chat", "concurrency": 8})
        for gpu in ("L4", "H200")
    ),
)
ALONE = """
import json, sys
sys.path[:] = [sys.argv[1], *(each for each in sys.path if "site-packages" not in each and not each.endswith("src"))]
class OnlyTheArchive:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "numpy click rich httpx httptools jinja2 matplotlib asyncio".split():
            raise ImportError(name)
sys.meta_path.insert(0, OnlyTheArchive())
from draftwise.verbs.pages.answers import answer, list_choices
list_choices()
assert sys.modules["draftwise"].__file__.startswith(sys.argv[1])
json.dump([answer(verb, fields) for verb, fields in json.load(sys.stdin)], sys.stdout)
"""


def test_archive_answers_alone(tmp_path):
    for path, content in list_files():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    fixtures = find_fixtures()
    assert len(fixtures) > 50
    asked = [("check", {"sources": text}) for text in fixtures] + list(ASKED)
    done = subprocess.run(
        [sys.executable, "-E", "-s", "-c", ALONE, tmp_path],
        input=json.dumps(asked), capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for (verb, fields), alone in zip(asked, json.loads(done.stdout), strict=True):
        assert alone == answer(verb, fields), fields
    assert not any(answer(verb, fields).startswith('{\n "error"') for verb, fields in ASKED)


def test_pyodide_is_asked_for(tmp_path):
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "nowhere" / "pyodide"))):
        build(tmp_path / "out", tmp_path / "nowhere")
