"""Options of verbs from rows of `options`, and the types of values that they take."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from draftwise.core import InvalidRequest

_DURATION = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*(ms|s|m|h)\s*")
_SECONDS: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_F = TypeVar("_F", bound=Callable[..., Any])
_FOLDER = Path(__file__).with_name("options")
PATH, FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)


class PanelCommand(click.Command):
    """A command whose help lists its options in panels, and which accepts earlier spellings of options with a note.

    Args:
        panels: title -> names of parameters, in order; the others follow under "Other options".
        renamed: earlier spelling -> today's.
    """

    def __init__(
        self,
        *arguments: Any,
        panels: Mapping[str, Sequence[str]] | None = None,
        renamed: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.panels, self.renamed = panels or {}, renamed or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace earlier spellings, and parse."""
        for place, word in enumerate(args):
            name, equals, value = word.partition("=")
            if word == "--":
                break
            if name in self.renamed:
                args[place] = f"{self.renamed[name]}{equals}{value}"
                click.echo(f"{name} is now {self.renamed[name]}; the earlier name still works.", err=True)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options panel by panel."""
        rows = {
            "help" if "--help" in param.opts else param.name or "": param.get_help_record(ctx)
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
        }
        listed = {name for names in self.panels.values() for name in names}
        others = {"Other options" if self.panels else "Options": [name for name in rows if name not in listed]}
        for title, names in (dict(self.panels) | others).items():
            if shown := [row for name in names if (row := rows[name]) is not None]:
                with formatter.section(title):
                    formatter.write_dl(shown)


class ParsedOption(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Text that a function of the verbs parses; its errors become errors of the option."""

    def __init__(self, read: Callable[[str], Any], name: str) -> None:
        self._read, self.name = read, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except InvalidRequest as error:
            self.fail(" ".join(each.message for each in error.findings), param, ctx)


class Finite(click.FloatRange):
    """A finite number: never nan or inf, even without limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Duration(Finite):
    """A time in the option's unit, or with an explicit unit: 500ms, 30s, 5m, 1h."""

    name = "duration"

    def __init__(self, least: float, most: float | None = None, *, min_open: bool = False, unit: str = "s") -> None:
        super().__init__(least, most, min_open=min_open)
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the time in the option's unit."""
        found = _DURATION.fullmatch(value) if isinstance(value, str) else None
        number = value if found is None else float(found[1]) * _SECONDS[found[2]] / _SECONDS[self._unit]
        return super().convert(number, param, ctx)


MINUTES, MILLISECONDS = (Duration(0, min_open=True, unit=unit) for unit in ("m", "ms"))
_TYPES: Mapping[Any, Any] = {
    "text": str, "int": int, "count": click.IntRange(1), "float": float, "path": PATH, "file": FILE,
    "minutes": MINUTES, "milliseconds": MILLISECONDS,
}  # fmt: skip


def options(name: str, *, of: Any = None, **more: Any) -> Callable[[_F], _F]:
    """Return a decorator that adds the options of `options/NAME.json`, or of that name in `options/shared.json`.

    A row has the flag as in the help, the help text, and whatever the field of the request does not say. A row that is
    a name stands for shared ones.

    Args:
        of: class of the request.
        more: parameter -> its type, or attributes of its option, which depend on code.
    """
    rows, hints = list(read_rows(name)), {} if of is None else get_type_hints(of, include_extras=True)

    def add(function: _F) -> _F:
        for row in reversed(rows):
            flag, _, metavar = row["flag"].partition(" ")
            spellings = row.get("names", ())
            field = next((each for each in spellings if each[0] != "-"), flag[2:].partition("/")[0].replace("-", "_"))
            attributes: dict[str, Any] = {"metavar": metavar or None}
            if field in hints:
                attributes |= _describe(hints[field], of.__dataclass_fields__[field].default)
            attributes |= {key: value for key, value in row.items() if key not in ("flag", "names")}
            said = more.get(field, {})
            attributes |= said if isinstance(said, dict) else {"type": said}
            kind = attributes.get("type")
            attributes["type"] = click.Choice(kind) if isinstance(kind, list) else _TYPES.get(kind, kind)
            function = click.option(flag, *spellings, **attributes)(function)
        return function

    return add


def read_rows(name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file or of a group of shared ones; none for a verb without rows."""
    for row in _read("shared").get(name) or _read(name):
        yield from read_rows(row) if isinstance(row, str) else (row,)


@cache
def _read(name: str) -> Any:
    file = _FOLDER / f"{name}.json"
    return json.loads(file.read_bytes()) if file.exists() else []


def _describe(hint: Any, default: Any) -> dict[str, Any]:
    """Return the attributes of an option whose field has this type and default."""
    said: dict[str, Any] = {"required": True} if default is MISSING else {}
    if default not in (MISSING, None, (), False):
        said = {"default": default} | ({"show_default": True} if default != "" else {})
    for kind in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        if origin is Sequence:
            return _describe(arguments[0], default) | {"multiple": True}
        if origin is bool:
            return said | {"is_flag": True}
        if origin is Annotated and arguments[0] is int:
            return said | {"type": click.IntRange(arguments[1].least, arguments[1].most)}
        if origin is Literal:
            return said | {"type": click.Choice(arguments)}
        if origin in (int, float, Path):
            return said | {"type": PATH if origin is Path else origin}
    return said
