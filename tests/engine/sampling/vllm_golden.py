"""Writes vllm_golden.json: what real vLLM makes of logits, for test_logits.py and test_logprobs.py to compare with.

Run by hand in an environment with vLLM 0.32 (the CPU build will do): `python vllm_golden.py > vllm_golden.json`.
"""

import json
import random
import sys
from types import SimpleNamespace

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch
from vllm.v1.sample.sampler import Sampler

VOCAB = 12
PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")


def make_case(rng, index):
    """Return settings and history; the first cases turn on one parameter each, later ones mix them."""
    output = [rng.randrange(VOCAB) for _ in range(rng.randrange(2, 9))]
    choices = {
        "temperature": round(rng.uniform(0.25, 2), 3),
        "top_k": rng.randrange(1, VOCAB + 3),
        "top_p": round(rng.uniform(0.3, 0.99), 3),
        "min_p": round(rng.uniform(0.01, 0.3), 3),
        "repetition_penalty": round(rng.uniform(0.6, 1.8), 3),
        "presence_penalty": round(rng.uniform(-2, 2), 3),
        "frequency_penalty": round(rng.uniform(-2, 2), 3),
        "logit_bias": {rng.randrange(VOCAB): round(rng.uniform(-4, 4), 2) for _ in range(3)},
        "min_tokens": len(output) + rng.randrange(-1, 2),
        "bad_words": [[rng.randrange(VOCAB)], [output[-1], rng.randrange(VOCAB)], [rng.randrange(VOCAB)] * 3],
    }
    names = sorted(choices)
    chosen = [names[index]] if index < len(names) else rng.sample(names, rng.randrange(2, len(names) + 1))
    return {
        "params": {name: choices[name] for name in chosen},
        "prompt": [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9))],
        "output": output,
        "end_ids": [3],
        "stop_token_ids": [rng.randrange(VOCAB)],
        "logits": [round(rng.gauss(0, 2.5), 4) for _ in range(VOCAB)],
    }


def make_metadata(case):
    """Return vLLM's view of the case as a batch of one."""
    settings = {name: value for name, value in case["params"].items() if name != "bad_words"}
    params = SamplingParams(**{"temperature": 1.0, "max_tokens": 64, **settings}, stop_token_ids=case["stop_token_ids"])
    params.update_from_generation_config({}, case["end_ids"][0])
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=1))
    kinds = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    processors = [kind(config, torch.device("cpu"), False) for kind in kinds]
    added = [(0, params, case["prompt"], case["output"])]
    for processor in processors:
        processor.update_state(BatchUpdate(batch_size=1, removed=[], added=added, moved=[]))
    bad_words = case["params"].get("bad_words")
    return SamplingMetadata(
        temperature=torch.tensor([params.temperature]),
        all_greedy=False,
        all_random=True,
        top_p=torch.tensor([params.top_p]) if params.top_p < 1 else None,
        top_k=torch.tensor([min(params.top_k, VOCAB)]) if params.top_k > 0 else None,
        generators={},
        max_num_logprobs=None,
        no_penalties=not any(name in case["params"] for name in PENALTIES),
        prompt_token_ids=torch.tensor([case["prompt"]]),
        frequency_penalties=torch.tensor([params.frequency_penalty]),
        presence_penalties=torch.tensor([params.presence_penalty]),
        repetition_penalties=torch.tensor([params.repetition_penalty]),
        output_token_ids=[case["output"]],
        allowed_token_ids_mask=None,
        bad_words_token_ids={0: bad_words} if bad_words else {},
        logitsprocs=LogitsProcessors(processors),
    )


def with_answers(case):
    """Return the case with the logits that vLLM's sampler has at three moments."""
    sampler, metadata = Sampler(), make_metadata(case)
    logits = torch.tensor([case["logits"]])
    adjusted = sampler.apply_logits_processors(logits.clone(), metadata, False)
    final = sampler.apply_temperature(adjusted.clone(), metadata.temperature, True)
    for processor in metadata.logitsprocs.argmax_invariant:
        final = processor.apply(final)
    final = apply_top_k_top_p_pytorch(final, metadata.top_k, metadata.top_p)
    token = torch.tensor([case["output"][0]])
    top = sampler.gather_logprobs(sampler.compute_logprobs(logits), 3, token)
    answers = {"adjusted": adjusted, "final": final, "top_logprobs": top.logprobs}
    rounded = {name: [round(x, 6) for x in tensor[0].tolist()] for name, tensor in answers.items()}
    return case | rounded | {"top_ids": top.logprob_token_ids[0].tolist(), "rank": int(top.selected_token_ranks[0])}


def main():
    """Write 40 cases."""
    rng = random.Random(20)
    cases = [with_answers(make_case(rng, index)) for index in range(40)]
    sys.stdout.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
