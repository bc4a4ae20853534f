"""Defines a verb: a function from a frozen Request to a Result, callable with the Request's fields too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from errno import EIO, ENAMETOOLONG, ENOSPC, ESTALE
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar, cast

from draftwise.core import cause_of
from draftwise.core.documents import to_json
from draftwise.core.finding import DraftwiseError, Finding, InvalidRequest, StorageError, UnreadableSource
from draftwise.core.progress import Progress, Silent
from draftwise.knowledge.messages import refusal

if TYPE_CHECKING:
    from typing import NoReturn

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
_WIDTH = 110


class Group(StrEnum):
    """The part of an operator's work that a verb belongs to."""

    CHOOSE = "Choose"
    MEASURE = "Measure"
    DEPLOY = "Deploy"
    OPERATE = "Operate"
    BUILD = "Build"


@dataclass(frozen=True, slots=True)
class Row:
    """A verb as a list of verbs shows it."""

    name: str
    group: Group
    summary: str

    @property
    def module(self) -> str:
        """Name of its file in `verbs` and in `cli`."""
        return self.name.replace("-", "_")


class Result:
    """Base of what verbs return: a frozen dataclass whose fields are the document of `--json`.

    `str()` is what the terminal shows. Fields that are not part of the document are hidden
    (`core.documents.HIDDEN`).
    """

    __slots__ = ()
    VERB: ClassVar[str]
    """File of the verb, e.g. `warm_up`."""

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0, or 1 if the answer is bad news."""
        return 0

    @property
    def notices(self) -> tuple[Finding, ...]:
        """Findings about the request rather than the answer; the command line prints them to stderr."""
        return ()

    def to_dict(self) -> Any:
        """Return the document that `--json` prints."""
        return to_json(self)

    def __str__(self) -> str:
        from rich.console import Console

        text = StringIO()
        self._render(Console(file=text, width=_WIDTH, color_system=None))
        return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()).rstrip("\n")

    def _repr_html_(self) -> str:
        from rich.console import Console

        console = Console(file=StringIO(), width=_WIDTH, record=True)
        self._render(console)
        return console.export_html(inline_styles=True, code_format='<pre style="line-height:1.3">{code}</pre>')

    def _render(self, console: Any) -> None:
        import_module(f"draftwise.cli.{self.VERB}_command").render(console, self)


class Verb(Generic[P, Q, R]):
    """A verb as a value: called with the fields of its Request, or run with a Request and a Progress."""

    def __init__(self, request: Callable[P, Q], function: Callable[[Q, Progress], R]) -> None:
        self.request = request
        """Class of its requests."""
        self._function = function
        self.__name__ = self.__qualname__ = function.__name__
        self.__module__ = function.__module__
        self.about = inspect.cleandoc(function.__doc__ or "")
        self.__signature__ = inspect.signature(request).replace(return_annotation=function.__annotations__["return"])

    def __call__(self, *fields: P.args, **named: P.kwargs) -> R:
        """Return the result for the fields of a request, reporting no progress.

        Raises:
            InvalidSetup: what is asked for cannot be; `findings` says why, all at once.
            BackendError: a server, child process or connection failed.
            StorageError: a file cannot be written.
        """
        request = self.request(*fields, **named)
        _refuse_wrong_types(request)
        return self.run(request)

    def run(self, request: Q, progress: Progress | None = None) -> R:
        """Return the result of a request; raises the same errors as a call."""
        if any(type(getattr(request, name)) in (int, float) for name in getattr(request, "__dataclass_fields__", ())):
            _refuse_wrong_types(request)  # numbers out of their range, which cost most where they are not refused
        try:
            return self._function(request, Silent() if progress is None else progress)
        except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError):
            _refuse_wrong_types(request)
            raise
        except OSError as error:
            if error.filename is None and error.errno not in (EIO, ENOSPC, ESTALE):
                raise
            raise _describe_failure(error) from error

    @property
    def result(self) -> type[R]:
        """Class of its results."""
        from typing import get_type_hints

        return cast("type[R]", get_type_hints(self._function)["return"])

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What `help` shows: the text of the function, and that of each field of the request."""
        from draftwise.core.document_schema import field_texts

        fields = (f"    {name}: {text}" for name, text in field_texts(cast("type", self.request)).items())
        return "\n".join((self.about, "\nArguments:", *fields))

    def __get__(self, _instance: object, _owner: type | None = None) -> Verb[P, Q, R]:
        return self  # what has this is a routine for `help`

    def __repr__(self) -> str:
        return f"<verb {self.__name__}>"


def verb(request: Callable[P, Q]) -> Callable[[Callable[[Q, Progress], R]], Verb[P, Q, R]]:
    """Return a decorator that turns a function from a request to a result into a verb."""

    def make(function: Callable[[Q, Progress], R]) -> Verb[P, Q, R]:
        return Verb(request, function)

    return make


def load_verb(name: str) -> Verb[Any, Any, Any]:
    """Import the file of a verb (`warm-up` or `warm_up`) and return the verb."""
    module = name.replace("-", "_")
    found: Verb[Any, Any, Any] = getattr(import_module(f"draftwise.verbs.{module}"), module)
    return found


def _describe_failure(error: OSError) -> DraftwiseError:
    """Return the error of a file that cannot be read or written."""
    name, why = str(error.filename or "A file"), cause_of(error)
    if error.errno == ENAMETOOLONG:
        return refusal("name-too-long", name=name[:60])
    if isinstance(error, PermissionError | FileNotFoundError | IsADirectoryError | NotADirectoryError):
        text = f"{name} cannot be opened ({why})."
        return UnreadableSource.because("unreadable-file", text, where=name, fix="Check path and permissions.")
    return StorageError(f"{name} cannot be read or written ({why}). Make room or choose another folder.")


def _refuse_wrong_types(request: Any) -> None:
    """Refuse a request whose fields do not have their types; the command line has converted its values already."""
    from draftwise.verbs.field_types import find_wrong_types

    if wrong := list(find_wrong_types(request)):
        raise InvalidRequest(wrong) from None


def refuse(message: str, *, where: str = "") -> NoReturn:
    """Refuse a request whose fields contradict each other.

    Raises:
        InvalidRequest: always.
    """
    raise InvalidRequest.because("invalid-request", message, where=where)
