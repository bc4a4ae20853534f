"""Extracts a server's interface: Prometheus metrics, sampling parameters under speculation, environment variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from draftwise.extract.dataclass_fields import type_text
from draftwise.extract.expressions import UNKNOWN, evaluate, written
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Module, NotFound, Tree

_METRICS = ("vllm/v1/metrics/loggers.py", "vllm/v1/metrics/perf.py", "vllm/v1/spec_decode/metrics.py")
_LABELS = "labelnames"
_KIND = re.compile(r"_(counter|gauge|histogram)_cls$")


def metrics(tree: Tree) -> Facts:
    """Every metric of the V1 engine's /metrics, as declared (scraped counters end in `_total`)."""
    shared = _shared_labels(tree.get(_METRICS[0]))
    found: Facts = {}
    for module in filter(None, (tree.find(path) for path in _METRICS)):
        for scope in _functions(module):
            for name, kind, labels in _declared(module, scope, shared):
                found.setdefault(name, ({"kind": kind, "labels": labels}, module.source(scope.name)))
    if sum(name.startswith("vllm:spec_decode_") for name in found) < len(_SPEC_METRICS):
        raise NotFound(f"vLLM {tree.version}: the counters of speculative decoding are not read")
    return dict(sorted(found.items()))


_SPEC_METRICS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def _functions(module: Module) -> Iterator[ast.FunctionDef]:
    for statement in module.body:
        inner = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        yield from (node for node in inner if isinstance(node, ast.FunctionDef))


def _shared_labels(loggers: Module) -> list[str]:
    """Return the labels that the logger hands to everything that declares a metric."""
    for function in _functions(loggers):
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.List() as labels) if name == _LABELS:
                    return list(evaluate(loggers, labels))
    raise NotFound(f"vLLM {loggers.tree.version}: no {_LABELS} in {loggers.path}")


def _declared(module: Module, function: ast.FunctionDef, shared: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the metrics that a function declares, one by one or in a loop over a list of their names."""
    local = {_LABELS: shared}
    listed = [
        name for node in ast.walk(function) if isinstance(node, ast.Tuple) for name in _names(module, node.elts[:1])
    ]
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.endswith("labelnames"):
                labels = _labels(module, value, local)
                local |= {} if labels is None else {name: labels}
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and (kind := _KIND.search(ast.unparse(node.func)))):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        labels = _labels(module, given.get(_LABELS), local) or shared
        names = _names(module, [given["name"]] if "name" in given else node.args[:1]) or listed
        yield from ((name, kind[1], labels) for name in names)


def _names(module: Module, nodes: list[ast.expr]) -> list[str]:
    values = [evaluate(module, node) for node in nodes]
    return [value for value in values if isinstance(value, str) and value.startswith("vllm:")]


def _labels(module: Module, node: ast.expr | None, local: dict[str, list[str]]) -> list[str] | None:
    match node:
        case ast.Name(id=name):
            return local.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, rest = _labels(module, left, local), _labels(module, right, local)
            return None if first is None or rest is None else [*first, *rest]
        case ast.List():
            value = evaluate(module, node)
            return None if value is UNKNOWN else list(value)
    return None


_SAMPLING = "vllm/sampling_params.py"
_REFUSING = (  # (file, class, method)
    (_SAMPLING, "SamplingParams", "_validate_spec_decode"),
    ("vllm/v1/engine/input_processor.py", "InputProcessor", "_validate_supported_sampling_params"),
    ("vllm/v1/engine/input_processor.py", "InputProcessor", "_validate_sampling_params"),
)
_PROCESSORS = ("vllm/v1/sample/logits_processor/__init__.py", "vllm/v1/sample/logits_processor.py")
_BUILT_IN = ("min_p", "logit_bias", "min_tokens")
"""What vLLM's own logits processors do; the V1 rejection sampler of old releases runs none of them."""


def sampling_params(tree: Tree) -> Facts:
    """Effect of each sampling parameter under speculation.

    `rejected`: the request fails. `not_speculated`: the request gets no drafts. `ignored`: no effect on drafted
    positions. `supported`: all others.
    """
    module = tree.get(_SAMPLING)
    node = module.get_class("SamplingParams")
    names = [s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
    found: Facts = {name: ("supported", module.source(f"SamplingParams.{name}")) for name in names if name[0] != "_"}
    for effect, read in (("ignored", _ignored), ("not_speculated", _unspeculated), ("rejected", _rejected)):
        found |= {name: (effect, source) for name, source in read(tree) if name in found}
    if not any(effect in ("rejected", "not_speculated") for effect, _ in found.values()):
        raise NotFound(f"vLLM {tree.version}: no sampling parameter is refused under speculation")
    return found


def _rejected(tree: Tree) -> Iterator[tuple[str, str]]:
    for path, cls, name in _REFUSING:
        module = tree.find(path)
        function = module and module.find_function(name, of=cls)
        for node in ast.walk(function) if function else ():
            if isinstance(node, ast.If) and "with speculative decoding" in ast.unparse(node.body[0]):
                yield from ((param, module.source(f"{cls}.{name}")) for param in _tested(node.test) if module)


def _unspeculated(tree: Tree) -> Iterator[tuple[str, str]]:
    module = tree.find("vllm/v1/spec_decode/utils.py")
    function = module and module.find_function("is_spec_decode_unsupported")
    if module and function:
        yield from ((param, module.source(function.name)) for param in _tested(function))


def _ignored(tree: Tree) -> Iterator[tuple[str, str]]:
    module = tree.get(*_PROCESSORS)
    for node in ast.walk(ast.Module(module.body, [])):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "parameters won't" in node.value:
            spoken = re.findall(r"\b[a-z]+_[a-z]+\b", node.value.partition(" parameters ")[0])
            yield from ((param, module.source("build_logitsprocs")) for param in spoken)
            return
    sampler = tree.get("vllm/v1/sample/rejection_sampler.py")
    if "logitsprocs" not in sampler.text:
        yield from ((param, sampler.source("RejectionSampler.forward")) for param in _BUILT_IN)


def _tested(node: ast.AST) -> list[str]:
    """Return the attributes of `self`, `params` or `sampling_params` that an expression looks at."""
    owners = {"self", "params", "sampling_params"}
    return [
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in owners
    ]


def env(tree: Tree) -> Facts:
    """Every VLLM_* environment variable, with its declared type and default, and what to use instead if deprecated.

    Those that only other files than `envs.py` read have no declared type.
    """
    module = tree.get("vllm/envs.py")
    listed = module.names.get("environment_variables")
    if not isinstance(listed, ast.Dict):
        raise NotFound(f"vLLM {tree.version}: no table of variables in {module.path}")
    declared = {
        statement.target.id: statement
        for block in module.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    readers = {
        str(key.value): read
        for key, read in zip(listed.keys, listed.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    listed_there = {
        name: (_variable(module, declared.get(name)) | _replacement(module, read), module.source(name))
        for name, read in readers.items()
        if name.startswith("VLLM_")
    }
    return {**_find_read_elsewhere(tree), **listed_there}


_READING = r"(?:environ(?:\.get|\.pop)?[(\[]|getenv\()\s*"
_READ = re.compile(rf"{_READING}[\"'](VLLM_\w+)[\"'](?!\]\s*=[^=])")
_HELD = re.compile(r"^\s*(\w+)(?:: *\w+)? *= *[\"'](VLLM_\w+)[\"']", re.MULTILINE)


def _find_read_elsewhere(tree: Tree) -> Facts:
    """Return the variables of all files but `envs.py` and those of platforms that are plugins in later releases."""
    found: Facts = {}
    for path in sorted((tree.root / "vllm").rglob("*.py")):
        is_own = path.name != "envs.py" and "hpu" not in path.name and "neuron" not in path.name
        text = path.read_text(encoding="utf-8") if is_own else ""
        held = (each for each in _HELD.finditer(text) if re.search(rf"{_READING}{each[1]}\b", text))
        for name in (*_READ.findall(text), *(each[2] for each in held)) if "VLLM_" in text else ():
            value = _variable(tree.get("vllm/envs.py"), None)
            found.setdefault(name, (value, f"{path.relative_to(tree.root)}: {name}"))
    return found


def _replacement(module: Module, read: ast.expr) -> dict[str, str]:
    match read:
        case ast.Call(func=ast.Name(id="deprecated_env"), args=[_, _, told, *_]):
            return {"instead": str(evaluate(module, told))}
    return {}


def _variable(module: Module, declared: ast.AnnAssign | None) -> dict[str, Any]:
    if declared is None:
        return {"type": "str", "default": None}
    return {"type": type_text(declared.annotation), "default": written(module, declared.value)}
