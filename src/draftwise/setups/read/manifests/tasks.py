"""Files of tools that run commands or containers: Ansible, SkyPilot, dstack, ECS, RunPod, Nomad, values of a chart.

Values that these tools fill in (`{{ name }}`, `${var.name}`) are unknown and not judged. A text is skipped where they
may be more than one word (`${var.name}`, `{% if %}`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.knowledge.images import find_release
from draftwise.setups.read.manifests.parts import get_gpus, get_mapping, get_words, walk
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, get_text
from draftwise.setups.read.place import Place
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.installations import PINNED
from draftwise.setups.read.shell.launch import Launch, find_launch, find_launches, is_vllm_image, run_image
from draftwise.setups.read.shell.words import MAX_CHARS, Word, split_words

_FILLED_IN = re.compile(r"\{\{|\{%|\$\{")
_RECIPE = "recipe_version"
"""Key of a recipe of spark-vllm-docker."""
_PLACES = re.compile(r"""['"]|\{\{|\}\}|\{\w+\}|(?:[^'"{}]|[{}])+?(?=['"{}]|\Z)""")
"""Parts of a text for Python's `str.format`: quotes, escaped braces, places, and the rest."""
_BLOCK = re.compile(r"\{%(?:(?!\{%)[^\n])*?%\}|\{%")
_NAMED = re.compile(r"\$?\{\{[-\s]*([\w.]*)[^{}\n]*\}\}")
_WORDS = ("entrypoint", "command", "args")
_OTHER_NAMES = {
    "image": ("Image", "imageName", "imageUri", "containerImage"),
    "entrypoint": ("entryPoint", "Entrypoint", "dockerEntrypoint"),
    "args": ("Cmd", "dockerArgs", "dockerStartCmd", "containerArgs"),
}
"""Keys of ECS, RunPod, Vertex AI, Docker's own API: what each means here."""
_SCRIPTS = (
    "run", "script", "commands", "shell", "cmd", "command", "ansible.builtin.shell", "ansible.builtin.command",
    "start_command", "startCommand", "onstart",
)  # fmt: skip
_LINES = frozenset({"run", "script", "commands"})
"""Keys whose lists have a line of a shell in each item."""
_WITHOUT_SHELL = frozenset({"cmd", "ansible.builtin.command"})
"""Keys whose text no shell reads: the end of a line separates words."""
_MACRO = re.compile(r"\$\{([\w-]+)\}")
_FIRST_PORT = 5800
"""Port of the first model that llama-swap starts."""
_COMMAND = re.compile(r"(?:\w+=\S* +)*(?:(?:exec|nohup) +)?\S*(?:vllm +serve|python[\d.]* +-m +vllm)")
_ENV = ("env", "envs", "environment", "vars", "variables", "Env", "Environment")
_HCL_VALUE = re.compile(
    r"^[ \t]*(?P<key>image|entrypoint|command|args)[ \t]*=[ \t]*"
    r"""(?P<value>"[^"\n]*"|\[(?:"(?:[^"\\]|\\.)*"|[\s,])*\])""",
    re.MULTILINE,
)
_HCL_BLOCK = re.compile(r"^[^\n#]*[{}][ \t]*$", re.MULTILINE)


def find_tasks(document: YamlDocument, given: Mapping[str, str] = MappingProxyType({})) -> Iterator[Launch]:
    """Yield the servers of entries with an image of vLLM and its arguments, or with a shell's text."""
    pinned = {found[1] for _, entry in walk(document.value) for found in PINNED.finditer(str(list(entry.values())))}
    version = pinned.pop() if len(pinned) == 1 else ""
    images = {each["image"] for _, each in walk(document.value) if isinstance(each.get("image"), str)}
    only = images.pop() if len(images) == 1 and all(map(is_vllm_image, images)) else ""
    yield from _find_extra_arguments(document)
    for path, entry in walk(document.value):
        launch = _read_container(document, path, entry, given)
        # A Procfile, a justfile: every name is the author's own.
        own = [key for key, each in entry.items() if not path and isinstance(each, str) and _COMMAND.match(each)]
        is_read = launch is not None or path[-1:] == ("image",)
        keys = () if is_read else dict.fromkeys((*own, *_SCRIPTS))
        yield from () if launch is None else (launch,)
        for key in keys:
            for each in _read_script(document, path, entry, key, given):
                image = entry.get("image", entry.get("container"))  # dstack and recipes run the lines in it
                image = image if isinstance(image, str) else only
                yield (
                    each
                    if each.image or each.version
                    else replace(each, version=find_release(image) or version, image=image)
                )


def _find_extra_arguments(document: YamlDocument) -> Iterator[Launch]:
    """Yield the server of a chart that is not known, whose values hold vLLM's image and arguments besides its own."""
    image = get_mapping(document.value, "image")
    name, found = (
        f"{image.get('repository')}:{image.get('tag')}",
        [each for each in walk(document.value) if isinstance(each[1].get("extraArgs"), list)],
    )
    if len(found) == 1 and is_vllm_image(name):
        path, entry = (*found[0][0], "extraArgs"), found[0][1]
        own = Word("", unknown=("the arguments that the chart adds",))
        launch = run_image(Word(name), (), (own, *get_words(document, path, entry["extraArgs"], [])))
        yield from () if launch is None else (_place(document, path, launch, entry, {"extraArgs"}),)


def _read_container(
    document: YamlDocument, path: Path, entry: Mapping[str, Any], given: Mapping[str, str] = MappingProxyType({})
) -> Launch | None:
    others = {key: entry[name] for key, names in _OTHER_NAMES.items() for name in names if name in entry}
    entry = {**others, **entry}
    image, inside = entry.get("image"), get_mapping(entry, "image")
    name = f"{inside.get('repository')}:{inside.get('tag')}" if inside else image
    entry = {**inside, **entry}
    parts = [_split(entry.get(key)) for key in _WORDS]
    if not isinstance(name, str) or None in parts or not (is_vllm_image(name) or _FILLED_IN.search(name)):
        return None
    if inside and not parts[0]:
        parts[:2] = parts[1], ()  # a chart's command takes the place of the image's, as in Kubernetes
    entrypoint, *rest = (each or () for each in parts)
    words = [word for each in rest for word in each]
    open_image = (f"{name} (filled in)",) if _FILLED_IN.search(name) else ()
    env = _read_env(document, path, entry, {}).given(given)
    launch = run_image(Word(name, unknown=open_image), entrypoint, words, env=env)
    # A chart may add arguments of its own to those of its values, and the model among them.
    if launch is None or not (_names_model(launch) or (launch.entry == "serve" and launch.words)):
        return None
    return _place(document, path, launch, entry, {"image", *_WORDS, *chain.from_iterable(_OTHER_NAMES.values())})


def join_names(text: str) -> str:
    """Return a text in which each value that is filled in, and each condition of a template, is one word: `{{a}}`."""
    return _NAMED.sub(r"{{\1}}", _BLOCK.sub(" {{block}} ", text))


def _names_model(launch: Launch) -> bool:
    words = [word.text for word in launch.words]
    return any(each.startswith("--model=") for each in words) or "--model" in words[:-1]


def _split(value: Any) -> tuple[Word, ...] | None:
    """Return the words of a list or a text. None where a tool fills in how many there are."""
    if isinstance(value, str):
        try:
            value = join_names(value)
            return None if "${" in value else split_words(value)
        except InvalidSetup:
            return None  # prose under such a key
    items = () if value is None else value if isinstance(value, list) else ({},)
    texts = list(map(str, items))
    if any(_BLOCK.search(each) for each in texts) or any(isinstance(each, Mapping) for each in items):
        return None
    return tuple(
        Word("", unknown=(f"{each} (filled in)",)) if _FILLED_IN.search(each) else Word(each) for each in texts
    )


def _read_script(
    document: YamlDocument, path: Path, entry: Mapping[str, Any], key: str, given: Mapping[str, str]
) -> Iterator[Launch]:
    value = entry.get(key)
    text = "\n".join(map(str, value)) if isinstance(value, list) and key in _LINES else value
    if isinstance(text, str) and key == "cmd" and path[:1] == ("models",) and len(path) == 2:
        macros = {**get_mapping(document.value, "macros"), **get_mapping(entry, "macros")}
        text = _fill_macros(text, macros, path[-1])
    if isinstance(text, str) and _RECIPE in entry:
        text = _spell_places(text, get_mapping(entry, "defaults"))
    if not isinstance(text, str) or "vllm" not in text or "{%" in text:
        return
    if key in _WITHOUT_SHELL and not any(str(each).endswith("shell") for each in path[-1:]):
        text = re.sub(r"\n[ \t]*#[^\n]*", "\n", text)
        text = re.sub(r"(?<!\\)\n(?=\s*-)", " \\\n", text)
    line = document.line((*path, key)) + ("\n" in text.rstrip())
    # What is filled in is a variable to the shell, whose value is not told.
    script = _NAMED.sub(lambda found: f"${{{found[1].replace('.', '_') or 'value'}}}", text)
    try:
        launches = list(find_launches(script, line=line, env=_read_env(document, path, entry, given)))
    except InvalidSetup:
        return  # prose under such a key
    yield from (_place(document, (*path, key), each, entry, {key}) for each in launches)


def _fill_macros(text: str, macros: Mapping[str, Any], model: Any) -> str:
    """Return a command of llama-swap with its macros filled in; those of the model replace those of the file."""
    values = {"MODEL_ID": model, "PORT": _FIRST_PORT, **macros}
    known = {name: json.dumps(each) if isinstance(each, bool) else str(each) for name, each in values.items()}
    for _ in known:  # each may name others
        filled = _MACRO.sub(lambda found: known.get(found[1], found[0]), text)
        if filled == text or len(filled) > MAX_CHARS:
            break
        text = filled
    return text.replace("${env.", "${")


def _spell_places(text: str, defaults: Mapping[str, Any]) -> str:
    """Return a text for Python's `str.format` as a shell's: a variable with its default for each place."""
    quote, found = "", ""
    for part in _PLACES.findall(text):
        if len(part) == 1:
            quote = "" if part == quote else quote or part
        elif part in ("{{", "}}"):
            part = part[0]
        elif part.startswith("{"):
            name = part[1:-1]
            value = f"${{{name}:-{defaults[name]}}}" if name in defaults else f"${{{name}}}"
            part = f"'\"{value}\"'" if quote == "'" else value
        found += part
    return found


def _read_env(document: YamlDocument, path: Path, entry: Mapping[str, Any], told: Mapping[str, str]) -> Environment:
    """Return the variables of an entry and of what it lies in, as in a workflow, its jobs and their steps."""
    env, inside = Environment(values=told), document.value
    for around in (*path, None):
        given = dict(_list_env(inside if around is not None else entry))
        env |= Environment(
            values={name: text for name, text in given.items() if not _FILLED_IN.search(text)},
            unknown={name: "filled in" for name, text in given.items() if _FILLED_IN.search(text)},
        )
        inside = None if around is None else inside[around]
    return env.given(told)


def _list_env(entry: Any) -> Iterator[tuple[str, str]]:
    for key in _ENV if isinstance(entry, Mapping) else ():
        given = entry.get(key)
        rows = [*given.items()] if isinstance(given, Mapping) else []
        rows += [
            (each.get("name", each.get("key")), each.get("value"))
            if isinstance(each, Mapping)
            else str(each).partition("=")[::2]
            for each in (given if isinstance(given, list) else ())
        ]
        yield from ((str(name), str(text)) for name, text in rows if name and text not in (None, ""))


def _place(document: YamlDocument, path: Path, launch: Launch, entry: Mapping[str, Any], told: set[str]) -> Launch:
    """Say where a server stands. All other keys around it are options that no other file has a place for."""
    options = [("-e", f"{name}={text}") for name, text in _list_env(entry)]
    around = document.value if isinstance(document.value, Mapping) else {}
    others = {**{key: each for key, each in around.items() if key not in path}, **entry}
    options += [(str(key), json.dumps(each, default=str)) for key, each in others.items() if key not in (*told, *_ENV)]
    where = f"line {document.line(path)} {get_text(path)}".strip()
    placed = replace(launch, where=where, place=Place(form="command", value=tuple(options)))
    return placed if placed.num_gpus else replace(placed, num_gpus=get_gpus(entry))


def find_blocks(text: str) -> Iterator[Launch]:
    """Yield the servers of HCL's innermost blocks: an image of vLLM, or Nomad's command, with its arguments."""
    edges = [0, *(each.end() for each in _HCL_BLOCK.finditer(text)), len(text)]
    for start, end in pairwise(edges):
        found = {each["key"]: each["value"] for each in _HCL_VALUE.finditer(text, start, end)}
        if not {"image", "command"} & found.keys():
            continue
        try:
            entry = {key: json.loads(re.sub(r",\s*\]", "]", value)) for key, value in found.items()}
        except ValueError:
            continue
        line = text.count("\n", 0, text.index(found.get("image") or found["command"], start)) + 1
        document = YamlDocument(value=entry, lines={(): line}, texts={})
        launch = _read_container(document, (), entry) if "image" in found else _read_command(document, entry)
        if launch is not None:
            yield launch


def _read_command(document: YamlDocument, entry: Mapping[str, Any]) -> Launch | None:
    parts = [_split(entry.get(key)) for key in ("command", "args")]
    launch = None if None in parts else find_launch([word for each in parts for word in each or ()])
    return None if launch is None else _place(document, (), launch, entry, {"command", "args"})
