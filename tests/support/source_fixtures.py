"""The manifests, compose files and commands that tests are written with, found in their files."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def find_fixtures() -> list[str]:
    """Return each text of several lines in the tests that names vLLM, KServe or services of compose."""
    found = dict.fromkeys(
        node.value
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    names = ("services:", "InferenceService", "serving.kserve.io", "vllm serve", "vllm/vllm-openai", "speculative")
    return [text for text in found if "\n" in text and any(name in text for name in names)]
