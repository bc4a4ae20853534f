"""vLLM's half of the oracle: makes vLLM's own configuration objects for every case and writes down what became of it.

    VLLM_PYTHON worker.py --cases CASES.jsonl --out OUT.jsonl --models FOLDER [--tree SOURCES] [--platform cpu|cuda]

It imports vLLM, and the file beside it that prepares vLLM's surroundings. Without --tree the installed vLLM answers,
otherwise a wheel's bare sources do, under the dependencies of the installed one. Cases that OUT holds already are kept;
a case that kills the process is recorded as such.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import json
import logging
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import surroundings

sys.path.pop(0)  # nothing of vLLM shall find a neighbour of this file
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
STAGES = {
    "parse_args": "command line",
    "from_cli_args": "command line",
    "create_speculative_config": "speculative config",
}
"""Frame of vLLM on the way to an exception -> the stage that it belongs to; the innermost of them counts."""


FRONTENDS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
"""Where the releases keep the parser of `vllm serve`, newest place first."""

NOT_READY = 3
"""Status of a process that could not even prepare vLLM."""


class CommandLineError(Exception):
    """The parser refused the command line, where `vllm serve` would exit with status 2."""


def main() -> None:
    options = read_options()
    if options.child:
        answer_all(options)
        return
    done, total = count_answers(options.out), sum(1 for _ in options.cases.open())
    while done < total:
        status = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child"], check=False).returncode
        if status == NOT_READY:
            sys.exit("vLLM cannot be prepared; the reason stands above")
        if status and count_answers(options.out) < total:
            record_crash(options, status)
        if count_answers(options.out) == done:
            sys.exit(f"no progress after {done} cases")
        done = count_answers(options.out)


def record_crash(options: argparse.Namespace, status: int) -> None:
    """Give the case after the last answer, which took the process with it, an answer that says so."""
    case = json.loads(options.cases.read_text().splitlines()[count_answers(options.out)])
    with options.out.open("a") as out:
        out.write(json.dumps({"id": case["id"], "crashed": status}) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--platform", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def count_answers(path: Path) -> int:
    """Return the number of complete answers, after cutting off a line that a killed process left half written."""
    if not path.exists():
        return 0
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        path.write_bytes(whole)
    return whole.count(b"\n")


def answer_all(options: argparse.Namespace) -> None:
    """Answer every case that has no answer yet."""
    cases = options.cases.read_text().splitlines()[count_answers(options.out) :]
    out = options.out.resolve().open("a")
    os.environ.update(OFFLINE)
    if options.tree:
        sys.path.insert(0, str(options.tree.resolve()))
    os.chdir(options.models)
    try:
        oracle = Oracle(options.platform)
    except Exception:
        traceback.print_exc()
        sys.exit(NOT_READY)
    time.sleep = lambda _: None  # vLLM waits two seconds before it reads a broken config.json once more
    for line in cases:
        case = json.loads(line)
        out.write(json.dumps({"id": case["id"]} | oracle.judge(case)) + "\n")
        out.flush()


class Oracle:
    """One vLLM, ready to judge cases one after another."""

    def __init__(self, platform: str) -> None:
        surroundings.prepare(platform)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext

        self.engine_args = AsyncEngineArgs
        self.context = UsageContext.OPENAI_API_SERVER
        self.parser = AsyncEngineArgs.add_cli_args(parser_class()(prog="vllm serve"))
        self.parser.error = refuse_command_line
        self.command = Command()
        self.warnings = Warnings(logging.WARNING)
        logging.getLogger("vllm").addHandler(self.warnings)

    def judge(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """Return what vLLM makes of a case."""
        forget_said_once()
        self.warnings.lines.clear()
        with environment(case.get("env") or {}):
            try:
                given = self.engine_args.from_cli_args(self.parse(case))
                config = given.create_engine_config(usage_context=self.context)
            except (Exception, SystemExit) as error:
                outcome = {"accepted": False} | explain(error)
            else:
                outcome = {"accepted": True, "resolved": resolve(config)}
        return outcome | {"warnings": list(dict.fromkeys(self.warnings.lines))}

    def parse(self, case: Mapping[str, Any]) -> argparse.Namespace:
        """Return a case's arguments: of a whole line as `vllm serve` gets them, of its parts as the engine does."""
        return self.command.parse(case["line"]) if "line" in case else self.parser.parse_args(arguments(case))


class Command:
    """`vllm serve` up to the point where it would make the engine's arguments."""

    def __init__(self) -> None:
        self._parser: Any = None
        self._validate: Any = None

    def parse(self, line: list[str]) -> argparse.Namespace:
        if self._parser is None:
            self._prepare()
        given = self._parser.parse_args(["serve", *line])
        given = argparse.Namespace(**copy.deepcopy(vars(given)))  # vLLM changes configs that are the parser's defaults
        self._validate(given)
        if given.model_tag is not None:
            given.model = given.model_tag
        return given

    def _prepare(self) -> None:
        """Build the parser when the first line comes: cases about speculation do without the server's imports."""
        front = next(module for name in FRONTENDS if (module := importable(name)) is not None)
        cls = parser_class()
        cls.error = lambda _, message: refuse_command_line(message)
        self._parser = cls(prog="vllm")
        front.make_arg_parser(self._parser.add_subparsers(dest="subparser").add_parser("serve"))
        self._validate = front.validate_parsed_serve_args


class Warnings(logging.Handler):
    """Keeps the warnings of one case."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().splitlines()[0][:300])


def arguments(case: Mapping[str, Any]) -> list[str]:
    """Return the command line of a case, as an operator would write it."""
    line = ["--model", case["target"], "--skip-tokenizer-init"]
    if case.get("spec") is not None:
        line += ["--speculative-config", json.dumps(case["spec"])]
    for flag, value in (case.get("flags") or {}).items():
        name = flag.replace("_", "-")
        if isinstance(value, bool):
            line.append(f"--{name}" if value else f"--no-{name}")
        else:
            line.append(f"--{name}={json.dumps(value) if isinstance(value, list | dict) else value}")
    return line


def refuse_command_line(message: str) -> None:
    raise CommandLineError(message)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def importable(name: str) -> Any:
    """Return a module, or None where the release has none of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or ""):
            raise
        return None


def parser_class() -> Any:
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    return FlexibleArgumentParser


def forget_said_once() -> None:
    """Let vLLM repeat warnings that it prints once a process."""
    import vllm.logger as log

    for name in ("_print_warning_once", "_print_info_once", "_print_debug_once"):
        clear = getattr(getattr(log, name, None), "cache_clear", None)
        if clear:
            clear()


def explain(error: BaseException) -> dict[str, Any]:
    """Return class, stage and gist of a refusal."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/vllm/" in frame.filename and "/site-packages/pydantic" not in frame.filename]
    stage = next((STAGES[frame.name] for frame in reversed(frames) if frame.name in STAGES), "engine config")
    name = type(error).__name__
    return {
        "exception": "SystemExit" if isinstance(error, CommandLineError) else name,
        "stage": stage,
        "message": " | ".join(str(error).splitlines()[:4])[:500],
        "raised_in": f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "",
    }


def resolve(config: Any) -> dict[str, Any]:
    """Return what a VllmConfig holds, as plain JSON: the speculative part, and what depends on it."""
    spec = config.speculative_config
    resolved: dict[str, Any] = {
        "async_scheduling": getattr(config.scheduler_config, "async_scheduling", None),
        "target_max_model_len": config.model_config.max_model_len,
        "target_architectures": architectures(config.model_config),
        "max_num_scheduled_tokens": getattr(config.scheduler_config, "max_num_scheduled_tokens", None),
        "runner": runner(config),
    }
    if spec is None:
        return resolved | {"method": None}
    draft = spec.draft_model_config
    own = draft is not None and draft is not config.model_config
    return resolved | {
        "method": spec.method,
        "num_speculative_tokens": spec.num_speculative_tokens,
        "model": spec.model,
        "prompt_lookup_min": spec.prompt_lookup_min,
        "prompt_lookup_max": spec.prompt_lookup_max,
        "draft_tensor_parallel_size": spec.draft_tensor_parallel_size,
        "draft_parallel_tensor_parallel_size": getattr(spec.draft_parallel_config, "tensor_parallel_size", None),
        "draft_parallel_pipeline_parallel_size": getattr(spec.draft_parallel_config, "pipeline_parallel_size", None),
        "draft_architectures": architectures(draft) if own else None,
        "draft_max_model_len": draft.max_model_len if own else None,
        "draft_quantization": plain(getattr(draft, "quantization", None)) if own else None,
        "quantization": plain(spec.quantization),
        "fields": {
            name: plain(value)
            for name, value in vars(spec).items()
            if not name.endswith("_config") and not name.startswith("_")
        },
    }


def runner(config: Any) -> str | None:
    """Return the model runner that takes the work, where the release decides that in its configuration."""
    from vllm.platforms import current_platform

    chosen = getattr(config, "use_v2_model_runner", None)
    if chosen is None and not current_platform.is_cpu():  # its worker never asked
        from vllm import envs

        chosen = getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", None)
    return None if chosen is None else "V2" if chosen else "V1"


def architectures(model_config: Any) -> list[str] | None:
    return list(getattr(model_config, "architectures", None) or ()) or None


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; an enum by its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return getattr(value, "name", value) if not isinstance(value, str) else str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return getattr(value, "name", type(value).__name__)


if __name__ == "__main__":
    main()
