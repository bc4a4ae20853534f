"""Drafting methods, one row each: source of drafts, weights, state, vLLM's spelling, and the code that runs it.

The rows are in `data/methods.json`, in the order in which a checkpoint is matched against them, most specific first.
What holds only in some releases is in their generated tables and in the rules.

An installed package adds methods for the embedded engine: each entry point of the group `draftwise.methods` has the
name of a method and points at its row. Entry points are read only when a name is in no row of the table
(`find_method`, `get_method`) or when methods are listed (`all_methods`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from draftwise.core import InvalidSetup
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.method_advice import NO_ADVICE, MethodAdvice
from draftwise.knowledge.stored import read_rows

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "draftwise.methods"
"""Entry point group with which packages add methods."""

DraftsFrom = Literal["text", "own_model", "target_states", "own_code", "none"]
Network = Literal["chain", "one_pass", "heads", "none"]
Weights = Literal["drafter", "target", "either", "none"]
AuxStates = Literal["last", "several", "none"]
Parallel = Literal["never", "option", "always"]
Lookahead = Literal["none", "k", "k + 1"]
DraftLength = Literal["varies", "fixed", "none"]
Remembers = Literal["nothing", "answers", "unknown"]
Part = Literal["proposer", "trainer", "recognizer", "layout"]
_PARTS: tuple[Part, ...] = get_args(Part)
_LAYOUTS = (
    *("", "decoder", "layer", "fused_layer", "block", "block_markov"),
    *("residual_heads", "recurrent_heads", "target_layers"),
)
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "drafts_from": get_args(DraftsFrom),
    "network": get_args(Network),
    "weights": get_args(Weights),
    "aux_states": get_args(AuxStates),
    "parallel": get_args(Parallel),
    "lookahead": get_args(Lookahead),
    "v1_draft_length": get_args(DraftLength),
    "remembers": get_args(Remembers),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method."""

    name: str
    """Name in vLLM and in draftwise."""
    aliases: tuple[str, ...] = ()
    """Other names in some releases."""
    placeholders: tuple[str, ...] = ()
    """Values of the key `model` that mean the method."""
    meaning: str
    remembers: Remembers
    """What it keeps from a request to draft for later ones: `answers`; `unknown` for the operator's own code."""
    forgets_with: Mapping[str, int] = field(default_factory=dict)
    """Options with the values at which it keeps nothing."""
    drafts_from: DraftsFrom
    """`text`: the sequence itself and earlier ones; `own_model`: a language model; `target_states`: hidden states of
    the target; `own_code`: a class that you provide; `none`: it drafts nothing."""
    network: Network
    """`chain`: autoregressive, one pass per token; `one_pass`: one pass for all; `heads`: a small network for each
    position, without attention."""
    weights: Weights = "none"
    """Where its weights are: in a checkpoint of the drafter, in the target's (modules trained with it), in either, or
    nowhere."""
    layout: str = ""
    """Tensors of its drafters: a layout that `plan.size.drafter_parts` knows, or `module:function` like those there.
    Empty if unknown; their memory is then not estimated."""
    aux_states: AuxStates = "none"
    """Hidden states of the target that it reads: those of the last layer, or of several."""
    keeps_kv: bool = False
    """Whether it has its own KV cache."""
    package: str = ""
    """Python package that the server needs for it and vLLM does not install."""
    shares: tuple[Literal["embedding", "head"], ...] = ()
    """Weights that it takes from the target if its checkpoint lacks them."""
    parallel: Parallel = "never"
    """When it drafts over mask tokens in one pass: never, with `parallel_drafting`, or always."""
    lookahead: Lookahead = "none"
    """Slots that a sequence's draft takes in its own KV cache."""
    block_counts_anchor: bool = False
    """Whether `block_size` counts the token before the draft tokens."""
    drafts_whole_block: bool = False
    """Whether k must be the block size of its training, rather than any number up to it."""
    usual_k: int = 1
    """Largest k to start with if neither publisher nor drafter gives one; from vLLM's recipes."""
    default_k_key: str | None = None
    """Key whose value is k if `num_speculative_tokens` is not given; None if it is required."""
    required_key: str | None = None
    """One of `keys` that must be given."""
    keys: tuple[str, ...] = ()
    """Keys of the speculative config that apply to it, and not to every method."""
    embedded_keys: tuple[str, ...] = ()
    """Further keys that apply to it only in the embedded engine."""
    kept_by_vllm: bool = False
    """Whether vLLM keeps this `method` for any drafter name and config.json."""
    class_prefix: str | None = None
    """Prefix that vLLM adds to the name of the drafter's class if it lacks it."""
    usual_class: str | None = None
    """Architecture in the config.json of most published heads."""
    v1_draft_length: DraftLength = "none"
    """Whether Model Runner V1's proposer can change its draft length from step to step; `none` without a proposer."""
    v1_cuts_at_context: bool = False
    """Whether Model Runner V1 cuts its drafts where the context ends."""
    architectures: tuple[str, ...] = ()
    """Parts of its drafters' architecture names, in lower case."""
    model_types: tuple[str, ...] = ()
    """Values of `model_type` that only its drafters have."""
    speculators: tuple[str, ...] = ()
    """Values of `speculators_model_type`."""
    config_keys: tuple[str, ...] = ()
    """Keys of config.json that only its drafters have."""
    tensors: tuple[str, ...] = ()
    """Patterns for the beginnings of tensor names that only its drafters have."""
    recognizer: str = ""
    """`module:function` (config.json, tensor names) -> bool that recognizes its drafters if no other column does."""
    proposer: str = ""
    """`module:function` (resolved spec, engine config, target) -> Proposer; empty if the embedded engine lacks it."""
    trainer: str = ""
    """`module:class` of the `DrafterTraining`; empty if `draftwise train` does not train it."""
    advice: MethodAdvice = NO_ADVICE
    """Advice on its speed-up and acceptance."""
    source: str
    """Paper, change or file behind the row."""
    checked: str
    """Date on which the row was compared with its sources."""
    distribution: str = ""
    """Name and version of the installed package that adds it; empty for a method of the table."""

    @property
    def needs_drafter(self) -> bool:
        """Whether it requires the checkpoint of a drafter."""
        return self.weights == "drafter"

    @property
    def has_weights(self) -> bool:
        """Whether it loads weights in addition to the target's own layers."""
        return self.weights != "none"

    @property
    def embedded(self) -> bool:
        """Whether the embedded engine runs it."""
        return bool(self.proposer)

    @property
    def trainable(self) -> bool:
        """Whether `draftwise train` trains its drafters."""
        return bool(self.trainer)

    def load(self, part: Part) -> Any:
        """Import and return the `module:attribute` of a column.

        Raises:
            InvalidSetup: an installed package adds the method, and its code cannot be imported.
        """
        module, _, attribute = str(getattr(self, part)).partition(":")
        try:
            return getattr(import_module(module), attribute)
        except Exception as fault:
            if not self.distribution:
                raise
            raise _broken(self.distribution, self.name, f"{part} {module}:{attribute}: {fault!r}") from fault


_COLUMNS = frozenset(column.name for column in fields(Method)) - {"distribution"}
"""Those that a row may have."""


def get_method(name: str) -> Method:
    """Return a method by its name or an alias; KeyError for an unknown one.

    Raises:
        KeyError: neither the table nor an installed package has it.
        InvalidSetup: an installed package adds it, and its row cannot be used.
    """
    found = find_method(name)
    if found is None:
        raise KeyError(name)
    return found


def find_method(name: str | None) -> Method | None:
    """Return a method by its name or an alias; None if neither the table nor an installed package has it.

    Raises:
        InvalidSetup: an installed package adds it, and its row cannot be used.
    """
    if name is None:
        return None
    return _by_name().get(name) or _find_added(name)


def find_placeholder(model: str | None) -> Method | None:
    """Return the method that a value of the key `model` means; None if it names a drafter."""
    return next((method for method in _rows() if model in method.placeholders), None)


def all_methods(**columns: object) -> Mapping[str, Method]:
    """Return the methods of the table and of installed packages whose columns have these values, by name.

    Raises:
        AttributeError: there is no such column.
        InvalidSetup: the row of an installed package cannot be used.
    """
    added = [method for name in sorted(_entry_points()) if (method := _find_added(name)) is not None]
    return _select([*_rows(), *added], columns)


def methods_where(**columns: object) -> Mapping[str, Method]:
    """Return the methods of the table whose columns have these values, by name, in the order of the table.

    Raises:
        AttributeError: there is no such column.
    """
    return _select(_rows(), columns)


def _select(methods: Iterable[Method], columns: Mapping[str, object]) -> Mapping[str, Method]:
    return {
        method.name: method
        for method in methods
        if all(getattr(method, column) == value for column, value in columns.items())
    }


@cache
def _rows() -> tuple[Method, ...]:
    return read_methods(read_rows("methods"))


@cache
def _by_name() -> Mapping[str, Method]:
    return MappingProxyType({name: method for method in _rows() for name in (method.name, *method.aliases)})


def read_methods(rows: Iterable[Mapping[str, Any]]) -> tuple[Method, ...]:
    """Return the methods of rows.

    Raises:
        ValueError: a row has an unknown column or value, or two methods share a name or alias.
    """
    methods = tuple(map(_read, rows))
    names = [name for method in methods for name in (method.name, *method.aliases)]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"methods.json has two rows for {', '.join(twice)}")
    return methods


def _read(row: Mapping[str, Any], where: str = "methods.json") -> Method:
    unknown = sorted(row.keys() - _COLUMNS)
    unknown += [column for column, choices in _CHOICES.items() if column in row and row[column] not in choices]
    unknown += [part for part in _PARTS if not _names_part(part, row.get(part, ""))]
    if unknown:
        raise ValueError(f"{where}, {row.get('name')}: unknown column or value: {', '.join(unknown)}")
    try:
        return Method(**{**row, "advice": MethodAdvice.from_row(row["advice"]) if "advice" in row else NO_ADVICE})
    except (TypeError, ValueError) as fault:
        raise ValueError(f"{where}, {row.get('name')}: {fault}") from fault


def _names_part(part: Part, value: object) -> bool:
    if not isinstance(value, str):
        return False
    return value in (_LAYOUTS if part == "layout" else ("",)) or all(value.partition(":"))


@cache
def _entry_points() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points that installed packages have for methods, by name. Reading them takes milliseconds."""
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    return {name: tuple(found.select(name=name)) for name in found.names}


@cache
def _find_added(name: str) -> Method | None:
    """Return the method that an installed package adds under a name."""
    points = _entry_points().get(name, ())
    if not points:
        return None
    from draftwise.core.documents import DocumentError, from_json  # read only for a package's row

    point = points[0]
    dist = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    if len(points) > 1:
        raise _broken(dist, name, "another installed package adds one of that name")
    if name in _by_name():
        raise _broken(dist, name, "draftwise has a method of that name itself")
    try:
        row = point.load()
        if not isinstance(row, Mapping):
            raise TypeError(f"a row is a mapping, not {type(row).__name__}")
        from_json(Method, {key: row[key] for key in row if key != "advice"})  # refuses wrong types
        method = _read(_freeze(row), point.value)
    except DocumentError as fault:
        raise _broken(dist, name, f"{point.value}: {fault}") from fault
    except Exception as fault:  # a package's own code runs here
        raise _broken(dist, name, f"{point.value}: {fault!r}") from fault
    if method.name != name or method.aliases:
        raise _broken(dist, name, f"its row must have this name and no aliases, but is of {method.name!r}")
    return replace(method, distribution=dist)


def _freeze(row: Any) -> Any:
    """Return a row with tuples for lists, as rows of the table have."""
    if isinstance(row, Mapping):
        return {key: _freeze(value) for key, value in row.items()}
    return tuple(map(_freeze, row)) if isinstance(row, list | tuple) else row


def _broken(dist: str, name: str, why: str) -> InvalidSetup:
    return refusal("method-package-broken", dist=dist, name=name, why=why, group=GROUP)
