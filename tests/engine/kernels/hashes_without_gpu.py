"""Prints under which hash Triton keeps each kernel; with `reversed`, modules and what is in them come in that order."""

from __future__ import annotations

import builtins
import json
import pkgutil
import sys

import launch_without_gpu  # noqa: F401  (puts its driver in the place of a GPU's)
from triton.runtime.jit import JITFunction

from draftwise.engine.kernels.cuda import compile_ahead as ahead


def main(backwards: bool) -> None:
    if backwards:
        modules = pkgutil.iter_modules
        ahead.pkgutil.iter_modules = lambda *args: list(modules(*args))[::-1]
        ahead.vars = lambda module: dict(reversed(builtins.vars(module).items()))
    ahead.prepare()
    found = {}
    for name, module in list(sys.modules.items()):
        for value in builtins.vars(module).values() if name.startswith(ahead.cuda.__name__) else ():
            function = getattr(value, "jit", value)
            if isinstance(function, JITFunction):
                found[f"{function.module}.{function.fn.__name__}"] = function.hash
    print(json.dumps(found, sort_keys=True))


if __name__ == "__main__":
    main("reversed" in sys.argv)
