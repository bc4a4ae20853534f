"""Commands and Python programs of other engines: which engine, its speculation in vLLM's terms, and vLLM's command.

The rows of `knowledge/data/engines.json` have the commands of each engine and the meaning of its flags.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.core.finding import join_names
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.stored import read_data

_WORD = re.compile(r"""(?:[^\s"',\[\]{}()=\\;&|]|(?<=\w),(?=\w)|(?<=[\w:])\\(?=\w))+""")
_VLLM = re.compile(
    r"\bvllm(?:[\"']?,?\s+[\"']?serve\b|\.entrypoints)|vllm/vllm-openai|^[ \t]*(?:from|import) vllm\b", re.MULTILINE
)
_VARIABLE = re.compile(r"""["']?\$\{?([A-Za-z_]\w*)(\[[@*]\])?\}?["']?""")
_FOR_FLAGS = re.compile(r"ARG|OPT|EXTRA|FLAG|SPEC", re.IGNORECASE)
_SHORTEST = 14
"""Letters of a beginning that no two of a row's flags share."""
_CONTINUED = re.compile(r"(?<!\\)\n")
"""Ends of lines that no backslash joins to the next."""
_KEY = r"""["']?\b{name}\b["']?(?:\s*:\s*|\s*=\s*(?=["'\d]))["']?([\w./-]+)"""
_MAY_SPECULATE = re.compile(
    r"(?<![\w-])-[\w-]*(?:spec|draft|lookup|eagle|mtp|nextn|ngram)[\w-]*|-md|(?:speculative|draft)\w+(?=\s*=)"
)
"""A flag or an argument whose name is about speculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEngine:
    """A server of another engine, as a text starts it."""

    name: str
    target: str = ""
    """Empty if unknown."""
    method: str = ""
    """Method in vLLM's spelling; empty without speculation, or for an algorithm that vLLM lacks."""
    algorithm: str = ""
    """Algorithm as named in the text; several with commas."""
    num_drafts: int | None = None
    """Draft tokens per step, along one path."""
    num_verified: int | None = None
    """Tokens verified per step, over all paths of a tree; None for a chain."""
    drafter: str = ""
    depends_on: tuple[str, ...] = ()
    """Variables, flags of unknown meaning and files of settings, which may configure speculation."""
    source: str = ""

    def describe(self) -> str:
        """Return its speculation in one sentence."""
        names = join_names(self.depends_on) if self.depends_on else ""
        if not (self.method or self.algorithm):
            told = f"Whether it speculates depends on {names}." if names else "It does not speculate."
            return f"The text starts {self.name}, not vLLM. {told}"
        parts = [f"method {self.method}" if self.method else f"{self.algorithm}, which vLLM does not have"]
        if self.num_drafts is not None:
            parts.append(f"k {self.num_drafts}")
        if self.num_verified is not None:
            parts.append(f"a tree of {self.num_verified} tokens")
        if self.drafter:
            parts.append(f"drafter {self.drafter}")
        terms = f"Depending on {names}, it drafts in vLLM's terms" if names else "In vLLM's terms it drafts"
        return f"The text starts {self.name}, not vLLM. {terms} with {join_names(parts)}."

    def to_vllm(self) -> str:
        """Return the equivalent vLLM command; empty if part of it is unknown."""
        if not self.method or self.num_drafts is None:
            return ""
        spec = {"method": self.method, "model": self.drafter, "num_speculative_tokens": self.num_drafts}
        text = json.dumps({key: value for key, value in spec.items() if value})
        less = " vLLM drafts a single path, not a tree." if self.num_verified is not None else ""
        if self.target.endswith(".gguf"):
            less += " GGUF files need a plugin of vLLM."
        if "," in self.algorithm:
            less += f" vLLM runs one method, not {join_names(self.algorithm.split(','))} in turn."
        return f"For vLLM: vllm serve {self.target or 'MODEL'} --speculative-config {shlex.quote(text)}.{less}"


def find_other_engine(text: str) -> OtherEngine | None:
    """Return the other engine that a text starts or configures; None without one, or if the text also starts vLLM."""
    if _VLLM.search(text):
        return None
    for row in read_data("engines")["engines"]:
        starts = next((found for each in row["commands"] if (found := re.search(each, text))), None)
        keyed = dict(_find_keys(row.get("keys", {}), text))
        classes = set(re.findall(row["classes"], text)) if starts is not None and "classes" in row else set()
        keyed |= {"algorithm": classes.pop()} if len(classes) == 1 else {}
        if starts is not None or "algorithm" in keyed:
            words = _WORD.findall(text[starts.start() :]) if starts is not None else []
            said = {**keyed, **dict(_find_flags(row["flags"], words))}
            if "stages" in row and (stage := re.search(row["stages"], text)) is not None:
                said |= {"algorithm": stage[1], "steps": stage[2]}
            if "algorithm" in said or any(each in said for each in row.get("implied", ())):
                return _read_engine(row, said)
            command = text[starts.start() :] if starts is not None else ""
            names = tuple(dict.fromkeys(_find_further(_CONTINUED.split(command, maxsplit=1)[0])))
            elsewhere = dict(_find_flags(row["flags"], _WORD.findall(text))) if names else {}
            unread = () if names else tuple(dict.fromkeys(_MAY_SPECULATE.findall(command)))
            return _read_engine(row, {**elsewhere, **said}, names or unread)
    return None


def _find_further(command: str) -> Iterator[str]:
    """Yield the variables that are words of their own and hardly a flag's value: they may stand for any flags."""
    before = ""
    for word in command.split():
        variable = _VARIABLE.fullmatch(word)
        if variable is not None and (
            not before.startswith("-") or "=" in before or variable[2] or _FOR_FLAGS.search(variable[1])
        ):
            yield variable[1]
        before = word


def _find_flags(flags: Mapping[str, Sequence[str]], words: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = [word for word in words if word != "-"]
    for meaning, names in flags.items():
        for index, word in enumerate(words[:-1]):
            value = words[index + 1]
            is_short = len(word) > _SHORTEST and names[0].startswith(word)  # argparse takes a beginning
            if (word in names or is_short) and not value.startswith("-"):
                yield meaning, value
                break


def _find_keys(keys: Mapping[str, Sequence[str]], text: str) -> Iterator[tuple[str, str]]:
    for meaning, names in keys.items():
        for name in names:
            found = re.search(_KEY.format(name=name), text)
            if found is not None:
                yield meaning, found[1]
                break


def _read_engine(row: Mapping[str, Any], found: Mapping[str, str], names: tuple[str, ...] = ()) -> OtherEngine:
    algorithm, drafter, target = (found.get(name, "") for name in ("algorithm", "drafter", "target"))
    drafter = "" if drafter == target else drafter  # modules of the target's own
    algorithm = "" if algorithm == "none" else algorithm
    implied = next((method for meaning, method in row.get("implied", {}).items() if meaning in found), "")
    methods = [row["methods"].get(each.upper(), implied) for each in algorithm.split(",")]
    lookups = methods_where(network="none")  # of a chain, k is the network's
    method = next((each for each in methods if each and each not in lookups), methods[0])
    heads = row.get("heads", {})
    method = next((named for pattern, named in heads.items() if re.search(pattern, drafter.lower())), method)
    if not drafter:
        method = row.get("own_modules", {}).get(method, method)
    steps, verified, width = (_to_int(found.get(name)) for name in ("steps", "verified", "width"))
    is_tree = (width or 1) > 1
    if verified is not None and not is_tree and steps in (None, 1):
        steps = max(verified - 1, steps or 0)  # the token before the drafts is verified with them
    return OtherEngine(
        name=row["name"],
        target=target,
        method=method,
        algorithm=algorithm,
        num_drafts=steps,
        num_verified=verified if is_tree else None,
        drafter=drafter,
        depends_on=names if algorithm or "file" not in found else (*names, found["file"]),
        source=row["source"],
    )


def _to_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 6 else None
