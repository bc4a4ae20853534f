"""The law of verifying: whatever `deploy` writes, `verify` ends with 0 on its folder and on both of its files."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.adopted import IMAGES
from tests.support.read_back_law import Case, list_cases

from draftwise.core import Device, InvalidSetup, Setup, SpecConfig
from draftwise.deploying import TARGETS, deploy, make_order
from draftwise.verbs.verify import VerifyRequest, verify

HUB, HEAD = "meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
SPECS = {
    "n-gram": SpecConfig(method="ngram", num_speculative_tokens=5),
    "of the hub": SpecConfig(method="eagle3", model=HEAD, num_speculative_tokens=3),
    "in a directory": SpecConfig(method="eagle3", model="/mnt/models/draft-eagle3", num_speculative_tokens=3),
    "with the hub's name": SpecConfig(method="eagle3", model=f"/srv/{HEAD}", num_speculative_tokens=3),
    "a model": SpecConfig(method="draft_model", model="/mnt/models/Llama-3.2-1B-Instruct", num_speculative_tokens=3),
}
MODELS = (HUB, HUB, "/mnt/models/target", f"/srv/{HUB}", "/mnt/models/Llama-3.1-8B-Instruct")
NOT_TAKEN = {
    *("layout-cannot-fetch", "layout-too-small", "layout-names-collide", "layout-too-new"),
    *("argument-read-by-shell", "drafter-of-other-model"),
}


@pytest.mark.parametrize("case", list(list_cases()), ids=str)
def test_what_is_written_passes(case: Case, tmp_path: Path) -> None:
    written = 0
    for number, (model, spec) in enumerate(zip(MODELS, SPECS.values(), strict=True)):
        setup = Setup(target=model, engine="vllm", engine_version="0.26.0", spec=spec,
                      device=Device(name="H200", kind="cuda"))  # fmt: skip
        out, refused = tmp_path / str(number), set[str]()
        try:
            order = replace(make_order(setup, image=IMAGES.get(case.to, "")), platform=case.platform)
            folder = deploy(order, case.to, metrics_prefix=None)
        except InvalidSetup as error:
            refused = {each.code for each in error.findings}
        assert refused <= NOT_TAKEN, (model, spec)
        if refused:
            continue
        folder.write(out)
        written += 1
        for source in (out, *(out / f"{side}{TARGETS[case.to].suffix}" for side in ("spec", "plain"))):
            found = verify.run(VerifyRequest(str(source)))
            assert found.exit_code == 0, (model, spec, source, [str(each.report.findings) for each in found.judgements])
    assert written >= 1
