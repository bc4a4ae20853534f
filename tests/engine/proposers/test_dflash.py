"""DFlash drafts as the dense network written here does, however it is paged, chunked, batched and overruled."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.support.confirming import confirm
from tests.support.dflash_checkpoint import write_dflash

from draftwise.checkpoints.recognize import to_plain
from draftwise.core import InvalidSetup
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.proposers.dflash import DFlashProposer, load_dflash
from draftwise.engine.proposers.proposer import Confirmed
from draftwise.engine.sampling.draft import Draft

BLOCK_SIZE, NUM_PAGES, MAX_MODEL_LEN, K = 4, 80, 96, 3


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> CausalLM:
    return load_model(tiny_target, dtype="float64", device="cpu")


class Dense:
    """The drafter without pages or batches, from its files; the target's embedding and head from the outside."""

    def __init__(self, path: Path, target: CausalLM) -> None:
        self.config = to_plain(json.loads((path / "config.json").read_text()), where="")
        self.weights = {name: t.double() for name, t in load_file(path / "model.safetensors").items()}
        self.embedding = self.weights.get("embed_tokens.weight", target.weights.embedding_VH)
        own_head = self.weights.get("lm_head.weight")
        self.head = target.weights.head if own_head is None else lambda x: x @ own_head.T
        self.target_vocab = target.shape.vocab_size

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return (
            x / (x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).sqrt() * self.weights[name + ".weight"]
        )

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        out = x @ self.weights[name + ".weight"].T
        return out + self.weights[name + ".bias"] if name + ".bias" in self.weights else out

    def rotate(self, x_TAD: torch.Tensor, positions: range) -> torch.Tensor:
        size = x_TAD.shape[-1]
        angles = torch.tensor(
            [[p / self.config["rope_theta"] ** (2 * i / size) for i in range(size // 2)] for p in positions]
        )
        turn = torch.polar(torch.ones_like(angles).double(), angles.double()).unsqueeze(1)
        turned = torch.complex(x_TAD[..., : size // 2], x_TAD[..., size // 2 :]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    def is_causal(self, layer: int) -> bool:
        kinds = self.config.get("layer_types")
        return self.config["dflash_config"].get("causal", bool(kinds) and kinds[layer] == "sliding_attention")

    def laws(self, states_TF: torch.Tensor, token: int, count: int) -> torch.Tensor:
        """Return the distribution of each of `count` draft tokens after `token`, over the target's vocabulary."""
        known, queries = len(states_TF), count + 1
        heads, groups, size = (self.config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        context = self.norm(self.linear(states_TF, "fc"), "hidden_norm")
        x = self.embedding[[token, *[self.config["dflash_config"]["mask_token_id"]] * count]].double()
        for i in range(self.config["num_hidden_layers"]):
            layer, attention = f"layers.{i}.", f"layers.{i}.self_attn."
            h = self.norm(x, layer + "input_layernorm")
            both = torch.cat((context, h))
            q = self.norm(self.linear(h, attention + "q_proj").view(queries, heads, size), attention + "q_norm")
            k = self.norm(self.linear(both, attention + "k_proj").view(-1, groups, size), attention + "k_norm")
            v = self.linear(both, attention + "v_proj").view(-1, groups, size)
            q, k = self.rotate(q, range(known, known + queries)), self.rotate(k, range(known + queries))
            k, v = (t.repeat_interleave(heads // groups, dim=1) for t in (k, v))
            scores = torch.einsum("qad,kad->aqk", q, k) / size**0.5
            if self.is_causal(i):
                hidden = torch.arange(known + queries) > torch.arange(known, known + queries).unsqueeze(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            mixed = torch.einsum("aqk,kad->qad", scores.softmax(-1), v).reshape(queries, -1)
            x = x + self.linear(mixed, attention + "o_proj")
            h = self.norm(x, layer + "post_attention_layernorm")
            gate, up = self.linear(h, layer + "mlp.gate_proj"), self.linear(h, layer + "mlp.up_proj")
            x = x + self.linear(F.silu(gate) * up, layer + "mlp.down_proj")
        law_U = self.head(self.norm(x[1:], "norm")).softmax(-1)
        if "d2t" not in self.weights:
            return law_U
        ids = torch.arange(law_U.shape[-1]) + self.weights["d2t"].long()
        return torch.zeros(count, self.target_vocab, dtype=law_U.dtype).index_copy(1, ids, law_U)


class Story:
    """One sequence: its tokens, the target's states, and how much of both the proposer knows."""

    def __init__(self, slot: int, num_prompt: int, num_features: int) -> None:
        generator = torch.Generator().manual_seed(slot)
        self.slot, self.num_prompt, self.known = slot, num_prompt, 0
        self.tokens = torch.randint(0, 250, (MAX_MODEL_LEN,), generator=generator).tolist()
        self.states = torch.randn(MAX_MODEL_LEN, num_features, generator=generator, dtype=torch.float64)
        pages = list(range(slot * 24, slot * 24 + 24))
        random.Random(slot).shuffle(pages)
        self.pages = pages


def confirmed(new_tokens: list[tuple[Story, int, int]], width: int | None = None) -> Confirmed:
    """Confirm `count` more tokens of each story and ask for `limit` draft tokens: (story, count, limit)."""
    starts = [max(story.known, 1) for story, _, _ in new_tokens]
    ends = [start + count for start, (_, count, _) in zip(starts, new_tokens, strict=True)]
    rows = [story.tokens[s:e] for (story, _, _), s, e in zip(new_tokens, starts, ends, strict=True)]
    for (story, _, _), end in zip(new_tokens, ends, strict=True):
        story.known = end
    return confirm(
        rows,
        starts=starts,
        limits=[limit for _, _, limit in new_tokens],
        slots=[story.slot for story, _, _ in new_tokens],
        num_prompt=[story.num_prompt for story, _, _ in new_tokens],
        pages=[
            story.pages[: -(-(end + limit) // BLOCK_SIZE)]
            for (story, _, limit), end in zip(new_tokens, ends, strict=True)
        ],
        scratch=NUM_PAGES,
        features_NF=torch.cat(
            [story.states[s - 1 : e - 1] for (story, _, _), s, e in zip(new_tokens, starts, ends, strict=True)]
        ),
        temperature=1.0,
        width=width,
    )


def start(path: Path, target: CausalLM, *, k: int | None = None, probabilistic: bool = False) -> DFlashProposer:
    network = load_dflash(path, target, max_model_len=MAX_MODEL_LEN, k=k)
    proposer = DFlashProposer(network, max_model_len=MAX_MODEL_LEN, probabilistic=probabilistic)
    proposer.allocate(num_pages=NUM_PAGES, block_size=BLOCK_SIZE)
    return proposer


def check(draft: Draft, dense: Dense, new_tokens: list[tuple[Story, int, int]]) -> None:
    for b, (story, _, limit) in enumerate(new_tokens):
        count = min(limit, K)
        assert draft.lengths_B[b] == count
        if count == 0:
            continue
        laws = dense.laws(story.states[: story.known - 1], story.tokens[story.known - 1], count)
        assert draft.probs_BKV is not None
        torch.testing.assert_close(draft.probs_BKV[b, :count].double(), laws, atol=1e-5, rtol=1e-4)


VARIANTS = {
    "plain": {},
    "one layer, three states": {"num_layers": 1, "target_layer_ids": (0, 1, -1)},
    "biases": {"attention_bias": True},
    "own embedding and head": {"own_embedding": True, "own_head": True},
    "smaller vocabulary": {"draft_vocab_size": 90},
    "own width": {"hidden_size": 48},
    "causal": {"dflash_config": {"causal": True}},
    "causal where the window slides": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": MAX_MODEL_LEN,
    },
    "speculators format": {"speculators": True, "draft_vocab_size": 90, "attention_bias": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_draft_tokens_are_those_of_the_dense_network(
    tmp_path: Path, target: CausalLM, target_config: dict, variant: str
):
    path = write_dflash(tmp_path, target_config, **VARIANTS[variant])
    dense, proposer = Dense(path, target), start(path, target, probabilistic=True)
    a, b, c = (Story(slot, num_prompt, len(proposer.aux_layers) * 64) for slot, num_prompt in enumerate((10, 50, 3)))
    steps = [
        [(a, 6, 0), (b, 40, 0)],  # parts of prompts
        [(a, 4, 3), (b, 10, 2), (c, 3, 3)],
        [(a, 1, 3), (c, 4, 3), (b, 2, 0)],  # everything overruled, everything accepted, nothing wanted
        [(b, 1, 1), (a, 3, 3), (c, 1, 2)],
        [(b, 4, 3)],
    ]
    for new_tokens in steps:
        check(proposer.propose(confirmed(new_tokens), K), dense, new_tokens)


@pytest.fixture(scope="module")
def target_config(tiny_target: Path) -> dict:
    return json.loads((tiny_target / "config.json").read_text())


def test_a_float32_cache_says_the_same(tmp_path: Path, tiny_target: Path, target_config: dict, target: CausalLM):
    """float32 runs on the compiled kernels, also for context, which has no query heads."""
    path = write_dflash(tmp_path, target_config, attention_bias=True)
    single = load_model(tiny_target, dtype="float32", device="cpu")
    proposers = [start(path, model, probabilistic=True) for model in (target, single)]
    probs = []
    for proposer in proposers:
        story = Story(0, 40, 128)
        new = confirmed([(story, 40, 3)])
        features_NF = new.features_NF.to(proposer._drafter.dtype)
        draft = proposer.propose(dataclasses.replace(new, features_NF=features_NF), K)
        probs.append(draft.probs_BKV)
    torch.testing.assert_close(probs[0], probs[1], atol=1e-4, rtol=1e-3)


def test_deterministic_drafts_are_the_likeliest_tokens(tmp_path: Path, target: CausalLM, target_config: dict):
    path = write_dflash(tmp_path, target_config, draft_vocab_size=90)
    dense, proposer, story = Dense(path, target), start(path, target), Story(1, 20, 128)
    draft = proposer.propose(confirmed([(story, 20, 3)]), K)
    laws = dense.laws(story.states[: story.known - 1], story.tokens[story.known - 1], K)
    assert draft.probs_BKV is None
    assert draft.tokens_BK[0].tolist() == laws.argmax(-1).tolist()


def test_without_draft_tokens_only_context_is_kept(tmp_path: Path, target: CausalLM, target_config: dict):
    path = write_dflash(tmp_path, target_config)
    dense, proposer, story = Dense(path, target), start(path, target, probabilistic=True), Story(0, 9, 128)
    assert proposer.propose(confirmed([(story, 9, 3)]), 0).tokens_BK.shape == (1, 0)
    new_tokens = [(story, 2, 3)]
    check(proposer.propose(confirmed(new_tokens), K), dense, new_tokens)
    assert proposer.kv_bytes_per_token == 2 * 2 * 2 * 16 * 8


def edit(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(path / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"fc.weight": None}, "tensors-missing"),
        ({"layers.1.self_attn.q_norm.weight": None}, "tensors-missing"),
        ({"d2t": None}, "tensors-missing"),
        ({"lm_head.weight": None}, "tensors-missing"),
        ({"mask_hidden": torch.zeros(1)}, "tensors-unknown"),
        ({"fc.weight": torch.zeros(64, 64)}, "tensor-shapes"),
        ({"d2t": torch.full((90,), 200)}, "wrong-d2t"),
    ],
)
def test_weights_that_do_not_belong_are_refused(tmp_path: Path, target: CausalLM, target_config: dict, changes, code):
    path = write_dflash(tmp_path, target_config, draft_vocab_size=90)
    edit(path, **changes)
    with pytest.raises(InvalidSetup) as error:
        start(path, target)
    assert [finding.code for finding in error.value.findings] == [code]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "unsupported-architecture"),
        ({"dflash_config": {"target_layer_ids": []}}, "config-incomplete"),
        ({"target_layer_ids": (0, 2)}, "layer-ids-out-of-range"),
        ({"dflash_config": {"mask_token_id": None}}, "mask-token-missing"),
        ({"dflash_config": {"mask_token_id": 10_000}}, "mask-token-out-of-range"),
        ({"dflash_config": {"attention_sink_bias": True}}, "unsupported-drafter"),
        ({"dflash_config": {"use_swa": True, "swa_window_size": 95}}, "unsupported-sliding-window"),
        ({"layer_types": ["sliding_attention"] * 2}, "unsupported-sliding-window"),
        ({"target_hidden_size": 32}, "hidden-size-differs"),
        ({"is_neox_style": False}, "unsupported-drafter"),
    ],
)
def test_configs_that_do_not_fit_are_refused(tmp_path: Path, target: CausalLM, target_config: dict, settings, code):
    path = write_dflash(tmp_path, target_config, **settings)
    with pytest.raises(InvalidSetup) as error:
        start(path, target)
    assert [finding.code for finding in error.value.findings] == [code]


def test_more_draft_tokens_than_a_block_holds_are_refused(tmp_path: Path, target: CausalLM, target_config: dict):
    path = write_dflash(tmp_path, target_config, block_size=4)
    start(path, target, k=3)
    with pytest.raises(InvalidSetup, match="num_speculative_tokens to 3 or less"):
        start(path, target, k=4)


def test_the_library_s_own_network_drafts_the_same(tmp_path: Path, tiny_target: Path, target: CausalLM):
    speculators = pytest.importorskip("speculators")
    network = library_network(speculators, tiny_target)
    network.save_pretrained(tmp_path)
    proposer = start(tmp_path, target, probabilistic=True)
    story = Story(0, 20, 128)
    draft = proposer.propose(confirmed([(story, 20, 3)]), K)
    network.double().eval()
    anchor = story.known - 1
    length = anchor + 5
    anchors = torch.zeros(1, length)
    anchors[0, anchor] = 1
    with torch.no_grad():
        _, logits, *_ = network._backbone_forward(
            hidden_states=story.states[None, :length],
            input_ids=torch.tensor([story.tokens[:length]]),
            loss_mask=anchors,
            verifier_last_hidden_states=torch.zeros(1, length, 64, dtype=torch.float64),
            document_ids=torch.zeros(1, length, dtype=torch.long),
            max_anchors=1,
        )
    distribution = logits[0, 1:].softmax(-1)
    ids = torch.arange(90) + network.d2t
    assert draft.probs_BKV is not None
    torch.testing.assert_close(draft.probs_BKV[0][:, ids].double(), distribution, atol=1e-5, rtol=1e-4)


def library_network(speculators, tiny_target: Path):
    """Return a random drafter of 3 draft tokens and 90 tokens, made by the speculators library for the tiny target."""
    import transformers
    from speculators.models.dflash import DFlashDraftModel

    torch.manual_seed(0)
    layers = transformers.Qwen3Config(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
    )
    t2d = torch.zeros(260, dtype=torch.bool)
    t2d[torch.randperm(260)[:90]] = True
    network = DFlashDraftModel.from_training_args(
        layers,
        t2d=t2d,
        d2t=t2d.nonzero().flatten() - torch.arange(90),
        draft_vocab_size=90,
        block_size=4,
        verifier_name_or_path=str(tiny_target),
        target_layer_ids=[1, 2],
        mask_token_id=259,
        draft_attn_impl="eager",
    )
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not name.startswith(("embed", "lm_head", "verifier")):
                parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.1))
    return network
