"""One change of one file: the smallest that starts what is wanted, proven by reading it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import islice

from draftwise.core import Finding, InvalidSetup, Setup, Severity, SpecConfig
from draftwise.deploying.edit.changes import Change, apply_change, list_spellings
from draftwise.deploying.edit.command_lines import find_command_changes
from draftwise.deploying.edit.yaml_lists import find_list_changes
from draftwise.deploying.order import make_order, refuse_other_hosts
from draftwise.deploying.read_back import read_back
from draftwise.deploying.secrets import without_secrets
from draftwise.deploying.targets import name_targets
from draftwise.deploying.verify.manifests import verify_text
from draftwise.knowledge.models import names_directory
from draftwise.setups.read import SourceText, read_setups

__all__ = ["Edited", "edit", "edit_as"]

_MOST = 300
"""Changes that are tried before the file is left to its owner; reading one takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A file that starts something else now."""

    text: str
    difference: str
    """From what was there, as a unified diff; empty where nothing had to be changed."""
    findings: tuple[Finding, ...] = ()
    """What its release makes of it."""


def edit_as(source: SourceText, setup: Setup) -> Edited:
    """Return a file whose server speculates as a setup does, judged as `verify` judges files.

    Args:
        source: a manifest, a unit or a script with one server.
        setup: whose config it takes over; one without takes it out. Its release counts where the file names none.

    Raises:
        InvalidSetup: its release does not start what would result, or the file cannot be edited.
    """
    before = _read_server(source, engine_version=setup.engine_version)
    if before.target != setup.target and not any(map(_is_path, (before.target, setup.target))):
        raise InvalidSetup.because(
            "other-target",
            f"{source.name} serves {before.target}, and the setup is one of {setup.target}.",
            where=source.name,
            fix="Give a setup of the model that the file serves.",
        )
    refuse_other_hosts(before, fix=f"Write the files anew: --to {name_targets('spans_hosts')}.")
    # Secrets that stand in the file stay where they are.
    bare = without_secrets(replace(before, spec=setup.spec, device=setup.device or before.device))
    spec = make_order(bare).setup.spec
    edited = edit(source, spec, engine_version=setup.engine_version)
    after = verify_text(replace(source, text=edited.text), replace(before, spec=spec)).findings
    # What was wrong before is the file's own: a patch of kustomize lacks most of what an object needs.
    known = {_identify(each) for each in verify_text(source, before).findings}
    found = [each for each in after if _identify(each) not in known]
    if errors := [each for each in found if each.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    return replace(edited, findings=tuple(each for each in found if each.severity is Severity.WARNING))


def _identify(finding: Finding) -> tuple[str, str]:
    return finding.code, finding.message


def _is_path(target: str) -> bool:
    return not target or names_directory(target)


def _read_server(source: SourceText, *, engine_version: str) -> Setup:
    """Return the one server that a file starts.

    Raises:
        InvalidSetup: it cannot be read, or starts several.
    """
    readings = read_setups(source)
    if len(readings) != 1:
        raise InvalidSetup.because(
            "several-servers",
            f"{source.name} starts {len(readings)} servers, and one is edited at a time.",
            where=source.name,
            fix="Move the others to files of their own.",
        )
    setup = readings[0].setup
    return setup if setup.engine_version else read_setups(source, engine_version=engine_version)[0].setup


def edit(source: SourceText, spec: SpecConfig | None, *, engine_version: str) -> Edited:
    """Return a file whose server speculates so, and is otherwise the one that it was.

    Every change is tried by reading the file again as anybody's: it must start what it started, with the config that
    is wanted, and nothing else. No line changes that does not have to.

    Args:
        source: a manifest, a unit or a script with one server.
        spec: what it is to speculate with; None for not at all.
        engine_version: of the server, where the file does not say it.

    Raises:
        InvalidSetup: the file cannot be read, starts several servers, or no change of it was found that does it.
    """
    before = _read_server(source, engine_version=engine_version)
    wanted = replace(before, spec=spec)
    lost = () if read_setups(source)[0].setup.engine_version else ("engine_version",)
    if not read_back(source.text, wanted, name=source.name, lost=lost):
        return Edited(text=source.text, difference="")
    for change in islice(_propose(source, spec), _MOST):
        text = apply_change(source.text, change)
        if text != source.text and not read_back(text, wanted, name=source.name, lost=lost):
            return Edited(text=text, difference=_compare(source, text))
    words = " ".join(next(list_spellings(spec))) or "no --speculative-config"
    raise InvalidSetup.because(
        "no-place-to-edit",
        f"No change of {source.name} was found after which its server starts with {words} and is otherwise the same.",
        where=source.name,
        fix="Edit its arguments by hand, and prove the file: draftwise verify FILE --setup setup.json.",
    )


def _propose(source: SourceText, spec: SpecConfig | None) -> Iterator[Change]:
    is_yaml = source.name.endswith((".yaml", ".yml", ".json"))
    for words in list_spellings(spec):
        if is_yaml:
            yield from find_list_changes(source.text, words)
        yield from find_command_changes(source.text, words)


def _compare(source: SourceText, text: str) -> str:
    before, after = (each.splitlines(keepends=True) for each in (source.text, text))
    lines = (
        line if line.endswith("\n") else f"{line}\n" for line in unified_diff(before, after, source.name, source.name)
    )
    return "".join(lines)
