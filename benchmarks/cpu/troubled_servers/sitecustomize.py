"""Trouble inside one server of a run. Python imports this by itself, as `real_faults.py` adds the folder to PYTHONPATH.

DRAFTWISE_TROUBLE is JSON: whose server (`arm`: plain or candidate), how much later it starts (`start_s`), `arguments`
that it gets beside its own, and `compile`: when its engine begins to compile kernels, and for how long, in seconds.
"""

import json
import os
import sys
import time
from threading import Thread


def _compile(after_s, for_s):
    time.sleep(after_s)
    import numba

    end, count = time.monotonic() + for_s, 0
    while time.monotonic() < end:
        count += 1
        known = {}
        exec(f"def kernel(x):\n    for i in range({count}, 9):\n        x = x * i + {count}\n    return x", known)
        numba.njit(known["kernel"])(1.0)


_trouble = json.loads(os.environ.get("DRAFTWISE_TROUBLE", "{}"))
if _trouble and sys.orig_argv[1:4] == ["-m", "draftwise", "serve"]:
    _arm = "candidate" if "--speculative-config" in sys.orig_argv else "plain"
    os.environ["DRAFTWISE_ENGINE_OF"] = _arm  # its engine inherits this
    if _arm == _trouble.get("arm"):
        time.sleep(_trouble.get("start_s", 0.0))
        sys.argv += _trouble.get("arguments", ())
elif os.environ.get("DRAFTWISE_ENGINE_OF") == _trouble.get("arm") and "compile" in _trouble:
    Thread(target=_compile, args=_trouble["compile"], daemon=True).start()
