"""Renders a checkpoint's Jinja chat template, in the sandbox and with the extras that transformers gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftwise.core import InvalidSetup

__all__ = ["ChatTemplate", "find_chat_template"]


class _GenerationBlock(jinja2.ext.Extension):
    """Lets `{% generation %}` pass: it marks the assistant's text for training and prints its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template.

    Raises:
        InvalidSetup: the template is not valid Jinja.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InvalidSetup.because(
                "bad-chat-template", f"The chat template is not valid Jinja: {error}.", where="chat_template"
            ) from None

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the prompt text for a conversation; the template sees `variables` too.

        Raises:
            InvalidSetup: the template refuses these messages (roles out of order, a missing field ...).
        """
        try:
            return self._template.render({**variables, "messages": messages})
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InvalidSetup.because(
                "chat-template-refused",
                f"The model's chat template refuses these messages: {error}",
                where="messages",
            ) from None


def find_chat_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> ChatTemplate | None:
    """Return a checkpoint's template: chat_template.jinja first, then tokenizer_config.json; None without one."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return ChatTemplate(path.read_text(encoding="utf-8"))
    given = tokenizer_config.get("chat_template")
    if isinstance(given, list):  # several templates by name
        given = {each["name"]: each["template"] for each in given}.get("default")
    return ChatTemplate(given) if given else None


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
