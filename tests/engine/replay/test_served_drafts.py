"""A draft model behind a server replays as it does on disk: the same steps, and the same chances of sampled drafts."""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import numpy as np
import pytest
from tests.engine.replay.test_equals_serving import BUNDLE, make_llm, replay, serve, shape, walked
from tests.support.serving import serving

from draftwise.backends.asking import Scorer
from draftwise.core import BackendError, InvalidSetup
from draftwise.engine.core import Engine
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.replayers import DenseReplayer
from draftwise.replaying.served_drafts import ServedReplayer
from draftwise.replaying.transcripts import Transcript

K = 5


@pytest.fixture(scope="module")
def scorers() -> Iterator[dict[str, Scorer]]:
    """Serve the bundled target and its draft model."""
    with ExitStack() as stack:
        found = {}
        for name in ("target", "draft_model"):
            config = EngineConfig(model=str(BUNDLE / name), dtype="float32", device="cpu", max_model_len=768)
            found[name] = Scorer(f"{stack.enter_context(serving(Engine(config))).url}/v1")
        yield found


def test_greedy_drafts_are_those_of_serving(scorers: dict[str, Scorer]) -> None:
    transcripts, steps = serve(make_llm("draft_model", K), 0.0)
    anchors = replay(ServedReplayer(k=K, draft=scorers["draft_model"].score), transcripts)
    assert walked(anchors, K) == shape(transcripts, steps)


def test_sampled_drafts_have_the_chances_of_the_models_on_disk(scorers: dict[str, Scorer]) -> None:
    llm = make_llm("draft_model", K, draft_sample_method="probabilistic")
    transcripts, _ = serve(llm, 1.0)
    asked = ServedReplayer(k=K, draft=scorers["draft_model"].score, target=scorers["target"].score)
    served, dense = (replay(each, transcripts).drafts_for(K) for each in (asked, DenseReplayer(llm.engine, (K,))))
    assert served.chances_NK is not None
    assert dense.chances_NK is not None
    drafted_NK = np.arange(K) < dense.drafted_N[:, None]
    np.testing.assert_allclose(np.where(drafted_NK, served.chances_NK, 0), dense.chances_NK, atol=2e-3)


def test_what_servers_cannot_say_is_refused(scorers: dict[str, Scorer]) -> None:
    warm = Transcript(id="warm", prompt_ids=(5, 6), answer_ids=(7, 8), limit=8, temperature=0.7)
    score = scorers["draft_model"].score
    with pytest.raises(InvalidSetup, match=r"warm was sampled at temperature 0\.7"):
        list(ServedReplayer(k=2, draft=score, target=score).replay([warm]))
    assert [each.id for each in ServedReplayer(k=2, draft=score).replay([warm])] == ["warm"]
    with pytest.raises(BackendError, match="does not answer"):
        Scorer("http://127.0.0.1:9")
    silent = httpx.Client(transport=httpx.MockTransport(_answer_without_logprobs))
    with pytest.raises(BackendError, match="does not tell prompt_logprobs"):
        Scorer("http://gateway", client=silent).score([1, 2, 3])


def _answer_without_logprobs(request: httpx.Request) -> httpx.Response:
    data = {"data": [{"id": "m"}]} if request.url.path == "/v1/models" else {"choices": [{"text": "x"}]}
    return httpx.Response(200, json=data)
