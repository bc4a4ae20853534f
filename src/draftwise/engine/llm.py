"""`LLM`: offline generation with vLLM's interface. To move a script between the two, change its import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.core import Engine, Pending
from draftwise.engine.engine_config import EngineConfig, one_gpu_settings
from draftwise.engine.engine_outputs import CompletionOutput, Delta, RequestOutput
from draftwise.engine.models.gguf_unpacking import unpack_models
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.startup_phases import TimedStartup
from draftwise.engine.step.scheduler import EngineRequest
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.knowledge.messages import refusal

Prompt = str | Mapping[str, Any] | Sequence[int]
"""Text, `{"prompt": text}`, `{"prompt_token_ids": ids}` or a list of token ids."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A metric that only increases."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Vector:
    """A counter per draft position."""

    name: str
    values: list[int]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric's current value."""

    name: str
    value: float


class LLM:
    """A loaded model, ready to generate.

    Example:
        >>> llm = LLM("bundle/target", speculative_config={"method": "ngram", "num_speculative_tokens": 5})
        >>> llm.generate("def add(a, b):", SamplingParams(temperature=0))[0].outputs[0].text

    Args:
        model: directory of a Hugging Face checkpoint, or a GGUF file, which is unpacked to the cache on first use.
        speculative_config: the JSON object of vLLM's `--speculative-config`, as mapping or text; None: plain decoding.
        lag: steps that the host is behind the device, see `Engine`.
        **settings: fields of `EngineConfig` (dtype, max_model_len, max_num_seqs, ...).

    Attributes:
        startup_s: seconds of each start-up phase, by name.

    Raises:
        InvalidSetup: the model, a setting or the speculative config is invalid (with all findings at once), or you ask
            for more than one GPU (with the equivalent `vllm serve` command).
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | str | None = None,
        lag: int | None = None,
        **settings: Any,
    ) -> None:
        spec = None if speculative_config is None else SpecConfig.parse(speculative_config)
        settings = one_gpu_settings(model, spec, settings)
        startup = TimedStartup()
        config, spec = unpack_models(EngineConfig.from_settings(model=model, **settings), spec)
        self.engine = Engine(config, spec, startup=startup, lag=lag)
        self.startup_s: Mapping[str, float] = startup.seconds
        self._ids = count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Return one result per prompt, in order.

        Args:
            prompts: one prompt, or several.
            sampling_params: one for all prompts, or one per prompt.
            use_tqdm: show a progress bar.

        Raises:
            InvalidSetup: there are no prompts, a prompt is invalid or too long, or prompts and params differ in number.
        """
        given = _as_prompts(prompts)
        if not given:
            raise InvalidSetup.because("no-prompts", "There are no prompts.", where="prompts", fix="Give at least one.")
        params = _one_for_each(sampling_params or SamplingParams(), len(given))
        outputs = [self._submit(prompt, each) for prompt, each in zip(given, params, strict=True)]
        self._run({output.request_id: output for output in outputs}, show_progress=use_tqdm)
        return outputs

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Return one result per conversation, rendered with the model's chat template. Arguments as for `generate`.

        Raises:
            InvalidSetup: the model has no chat template, or the template rejects the messages; or see `generate`.
        """
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Sequence[Mapping[str, Any]]]", [messages] if single else messages)
        tokenizer = self.get_tokenizer()
        prompts = [tokenizer.apply_chat_template(conversation) for conversation in conversations]
        tokenised = [{"prompt": text, "prompt_token_ids": tokenizer.encode(text, False)} for text in prompts]
        return self.generate(tokenised, sampling_params, use_tqdm=use_tqdm)

    def get_metrics(self) -> list[Counter | Gauge | Vector]:
        """Return the engine's metrics under vLLM's names. Speculative ones exist only with speculation."""
        from draftwise.knowledge.metrics import get_metric

        stats, spec = self.engine.stats(), self.engine.spec
        metrics: list[Counter | Gauge | Vector] = [
            Gauge(name, value) if get_metric(name).kind == "gauge" else Counter(name, int(value))
            for name, value in stats.readings(speculates=spec is not None).items()
        ]
        if spec is not None:
            per_pos = list(stats.spec.accepted_per_pos)
            per_pos += [0] * (spec.k - len(per_pos))
            metrics.append(Vector("vllm:spec_decode_num_accepted_tokens_per_pos", per_pos))
        return metrics

    def get_tokenizer(self) -> Tokenizer:
        """Return the target's tokenizer."""
        return self.engine.tokenizer

    def _submit(self, prompt: Prompt, params: SamplingParams) -> RequestOutput:
        text, ids = self._tokenise(prompt)
        request_id = str(next(self._ids))
        self.engine.add(EngineRequest(request_id=request_id, prompt_token_ids=ids, params=params))
        return RequestOutput(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=ids,
            outputs=[CompletionOutput(index=index) for index in range(params.n)],
        )

    def _tokenise(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self.engine.tokenizer.encode(prompt)
        if not isinstance(prompt, Mapping):
            return None, list(prompt)
        if "prompt_token_ids" in prompt:
            return prompt.get("prompt"), list(prompt["prompt_token_ids"])
        if "prompt" in prompt:
            return prompt["prompt"], self.engine.tokenizer.encode(prompt["prompt"])
        raise refusal("bad-prompt")

    def _run(self, outputs: dict[str, RequestOutput], *, show_progress: bool) -> None:
        try:
            pending: Pending = ()
            with _progress(sum(len(output.outputs) for output in outputs.values()), show_progress) as advance:
                while self.engine.has_work():
                    pending, deltas = self.engine.step(pending)
                    for delta in deltas:
                        _collect(outputs[delta.request_id], delta)
                        advance(delta.finish_reason is not None)
        finally:
            for request_id in outputs:
                self.engine.abort(request_id)


@contextmanager
def _progress(total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if asked to; yield what moves it on."""
    if not show:
        yield lambda _: None
        return
    from rich.progress import Progress

    with Progress() as progress:
        bar = progress.add_task("Generating", total=total)
        yield lambda steps: progress.advance(bar, steps)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list, also for a single prompt."""
    ids = not isinstance(prompts, str | Mapping) and bool(prompts) and all(isinstance(item, int) for item in prompts)
    if isinstance(prompts, str | Mapping) or ids:
        return [cast("Prompt", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _one_for_each(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise refusal("params-mismatch", num_params=len(params), num_prompts=num_prompts)
    return params


def _collect(output: RequestOutput, delta: Delta) -> None:
    """Add a delta to the result it belongs to."""
    completion = output.outputs[delta.index]
    completion.text += delta.text
    completion.token_ids += delta.token_ids
    completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
    if delta.logprobs is not None:
        completion.logprobs = (completion.logprobs or []) + delta.logprobs
        sampled = zip(delta.token_ids, delta.logprobs, strict=True)
        gained = sum(candidates[token].logprob for token, candidates in sampled)
        completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + gained
    if delta.prompt_logprobs is not None:
        output.prompt_logprobs = (output.prompt_logprobs or []) + delta.prompt_logprobs
    output.num_cached_tokens = max(output.num_cached_tokens, delta.num_cached_tokens)
    output.finished = all(each.finish_reason is not None for each in output.outputs)
