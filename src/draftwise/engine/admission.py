"""From a request to the sequences that answer it, or the findings that say why it cannot be answered."""

from __future__ import annotations

from collections.abc import Container, Iterator

from draftwise.core import Finding, ModelShape
from draftwise.engine.config import EngineConfig
from draftwise.engine.sampling.grammar import Grammars
from draftwise.engine.sampling.logits import check_params, encode_bad_words
from draftwise.engine.sampling.random import completion_seed, request_seed
from draftwise.engine.step.sequence import Request, Sequence
from draftwise.engine.text.detokenizer import IncrementalDetokenizer
from draftwise.engine.text.tokenizer import Tokenizer

__all__ = ["Admission"]


class Admission:
    """Checks requests and makes their sequences.

    Args:
        config: with max_model_len filled in.
        shape: of the target.
        tokenizer: the target's.
        grammars: what compiles the grammars of structured output.
    """

    def __init__(self, config: EngineConfig, shape: ModelShape, tokenizer: Tokenizer, grammars: Grammars) -> None:
        assert config.max_model_len is not None, "`build` fills it in"
        self._longest, self._seed = config.max_model_len, config.seed
        self._vocab_size, self._tokenizer, self._grammars = shape.vocab_size, tokenizer, grammars

    def check(self, request: Request, *, ids_in_use: Container[str]) -> Iterator[Finding]:
        """Yield what makes a request impossible."""
        ids, limit = request.prompt_token_ids, self._longest
        if request.request_id in ids_in_use:
            yield _error("request-id-in-use", f"Request id {request.request_id!r} is in use.", "Choose another one.")
        if not ids:
            yield _error("empty-prompt", "The prompt has no tokens.", "Give at least one token.")
        elif min(ids) < 0 or max(ids) >= self._vocab_size:
            message = f"Token ids must lie in 0..{self._vocab_size - 1}."
            yield _error("unknown-token", message, "Use this model's tokenizer.")
        if len(ids) >= limit:
            yield _error(
                "prompt-too-long",
                f"The prompt has {len(ids)} tokens, but prompt and output together may have {limit}.",
                "Shorten the prompt, or raise max_model_len if the model allows it.",
            )
        yield from check_params(request.params, self._vocab_size)

    def make_sequence(self, request: Request, index: int) -> Sequence:
        """Return completion number `index` of a request, before anything of it is computed.

        Raises:
            InvalidSetup: a bad word or the grammar of structured output cannot be used.
        """
        params, num_prompt = request.params, len(request.prompt_token_ids)
        if params.seed is None:
            seed = request_seed(self._seed, request.request_id, index)
        else:
            seed = completion_seed(params.seed, index)
        wanted = self._longest if params.max_tokens is None else num_prompt + params.max_tokens
        return Sequence(
            request=request,
            index=index,
            seed=seed,
            max_tokens=min(self._longest, wanted),
            tokens=list(request.prompt_token_ids),
            bad_words=encode_bad_words(params.bad_words, lambda text: self._tokenizer.encode(text, False)),
            grammar=None if params.structured_outputs is None else self._grammars.compile(params.structured_outputs),
            detokenizer=IncrementalDetokenizer(
                self._tokenizer,
                stop_strings=params.stop_strings,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
                prompt_token_ids=request.prompt_token_ids,
            ),
        )


def _error(code: str, message: str, fix: str) -> Finding:
    return Finding.error(code, message, where="prompt", fix=fix)
