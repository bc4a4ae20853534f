"""`python -m tests.support.fake_server`: a fake in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from dataclasses import fields
from typing import Any

from tests.support.fake_server.engine import FakeEngine
from tests.support.fake_server.script import FakeScript
from tests.support.fake_server.server import FakeServer


def main() -> None:
    """Serve until terminated; the first line of output is the URL."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fake_server", description=main.__doc__)
    parser.add_argument("--script", default="{}", help="Fields of FakeScript, as a JSON object.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one.")
    given = parser.parse_args()
    gc.disable()  # a collection would hold up all streams for milliseconds, and there are no cycles to collect
    asyncio.run(_serve(_read_script(parser, given.script), given.port))


def _read_script(parser: argparse.ArgumentParser, text: str) -> FakeScript:
    try:
        values: dict[str, Any] = json.loads(text)
    except ValueError as error:
        parser.error(f"--script is no JSON: {error}")
    known = {each.name for each in fields(FakeScript)}
    if unknown := values.keys() - known:
        parser.error(f"--script: unknown {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return FakeScript(**{name: _to_tuple(value) for name, value in values.items()})


def _to_tuple(value: Any) -> Any:
    return tuple(map(_to_tuple, value)) if isinstance(value, list) else value


async def _serve(script: FakeScript, port: int) -> None:
    server = FakeServer(FakeEngine(script), port)
    print(server.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
