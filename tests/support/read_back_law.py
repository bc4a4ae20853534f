"""The law of rendering: what is read from a file is what was ordered, for any setup that an operator may write."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import get_args

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from draftwise.core import Device, InvalidSetup, Setup, SpecConfig
from draftwise.deploying import TARGETS, Mode, Platform, ServiceOrder, read_layout
from draftwise.deploying.order import Host
from draftwise.deploying.read_back import read_back
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.vllm import get_release
from tests.support.adopted import IMAGES
from tests.support.drawn_setups import drawn_setups

GIB = 1 << 30
UNSAID = (
    *("argument-is-template", "argument-not-taken", "argument-read-by-shell", "config-not-spelled"),
    "host-of-group-given",
)
"""Refusals of what a platform cannot carry."""
UNPLACED = ("layout-cannot-fetch", "layout-too-small")
"""Refusals of weights that a layout does not bring."""
LAYOUTS = ("one", "storage-uris", "modelcar:registry/models:1", "pvc:models", "mixed:models")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A platform and what its files depend on."""

    to: str
    platform: Platform = field(default_factory=Platform)

    def __str__(self) -> str:
        parts = (self.to, self.platform.layout, self.platform.mode if self.to == "kserve" else None)
        return " ".join(str(part) for part in parts if part is not None)


def list_cases() -> Iterator[Case]:
    """Yield every target, and KServe's in every mode and layout."""
    for to in TARGETS:
        if to != "kserve":
            yield Case(to=to)
            continue
        for mode in get_args(Mode):
            yield from (Case(to=to, platform=Platform(mode=mode, layout=read_layout(each))) for each in LAYOUTS)


def order_of(setup: Setup, case: Case) -> ServiceOrder:
    gpu = Device(name="GPU", kind="cuda")
    args = {n: v for n, v in setup.args.items() if not n.endswith("parallel_size")}
    bare = replace(setup, device=gpu, args=args | ({"nnodes": 2} if TARGETS[case.to].spans_hosts else {}))
    host = Host(cpus=4, memory_bytes=20 * GIB, shm_bytes=2 * GIB)
    image = IMAGES.get(case.to) or f"vllm/vllm-openai:v{setup.engine_version}"
    return ServiceOrder(
        name="llama", pool="spec", setup=bare, image=image, host=host, startup_s=600, platform=case.platform
    )


METHODS = st.builds(
    SpecConfig,
    method=st.sampled_from(list(methods_where())),
    model=st.sampled_from([None, "org/head-eagle3", "/srv/head"]),
    num_speculative_tokens=st.integers(1, 9),
)


def check_law(case: Case, release: str, *, examples: int, seed: int | None = None) -> int:
    """Hold the law against setups that are drawn, and return how many were read back.

    Args:
        case: the platform.
        release: of vLLM.
        examples: to be drawn.
        seed: draws the same setups each time where it is None, and others for each number.
    """
    target, read = TARGETS[case.to], 0
    fixed = settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=seed is None,
        database=None,
    )

    @fixed
    @given(drawn_setups(get_release(release)), st.none() | METHODS)
    def law(setup: Setup, spec: SpecConfig | None) -> None:
        nonlocal read
        order = order_of(setup if spec is None else replace(setup, spec=spec), case)
        try:
            order = target.prepare(order)
            texts = [(side, target.render(side)) for side in (order, order.without_speculation())]
        except InvalidSetup as error:
            assume(error.findings[0].code not in (*UNSAID, *UNPLACED))
            raise
        for side, text in texts:
            assert read_back(text, side.setup, name=f"file{target.suffix}", lost=target.lost) == ()
        read += 1

    if seed is not None:
        from hypothesis import seed as seeded

        law = seeded(seed)(law)
    law()
    return read
