"""`replay`: estimates the worth of each drafting method on logged traffic, without serving it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar

from draftwise.checkpoints.gguf_files import is_gguf
from draftwise.core import Profile, Prompt, ReplayedTarget, Severity, SpecConfig, Workload
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress, check_stop
from draftwise.engine.engine_config import DEVICES, DTYPES
from draftwise.engine.resolved_spec import ResolvedSpec, resolve_spec
from draftwise.engine.sampling.acceptance_rules import Standard
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import get_method
from draftwise.replaying.replaying import (
    PROFILE,
    ReplayCandidate,
    ReplayDirectory,
    choose_ks,
    hash_transcripts,
    replay_candidates,
)
from draftwise.replaying.served_drafts import NgramReplayer, ServedReplayer, SuffixReplayer
from draftwise.replaying.transcripts import (
    Encoder,
    Grouping,
    Replayer,
    Transcript,
    Transcripts,
    needs_encoder,
    read_transcripts,
)
from draftwise.reporting.replayed import PAGE, render_replay
from draftwise.verbs.field_types import Range
from draftwise.verbs.sources import require_spec
from draftwise.verbs.verb import Result, refuse, verb
from draftwise.version import __version__, tell_install
from draftwise.workloads import draw, load_workloads, report_left_out

__all__ = ["DEVICES", "DTYPES", "PAGE", "PROFILE", "Grouping", "ReplayRequest", "ReplayResult", "read_ks", "replay"]


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A log, the model that wrote its answers, and the candidates."""

    log: str
    """Prompts with answers, such as a gateway's log; any form that `decide` accepts, with options after a #."""
    _: KW_ONLY
    target: str | PathLike[str]
    """Checkpoint of the model that wrote the answers."""
    candidates: Sequence[SpecConfig | Mapping[str, Any] | str]
    """Speculative configs; their num_speculative_tokens is the largest k."""
    out: str | PathLike[str] = "profile"
    """Folder of the profile; an interrupted replay in it is continued."""
    ks: str | Sequence[int] = ()
    """Draft lengths to answer for; empty for all."""
    group_by: Grouping | str | None = None
    """What the log's requests are grouped by; the acceptance of each group is given too."""
    default_temperature: Annotated[float, Range(0)] = 1.0
    """Temperature of requests that name none."""
    max_model_len: Annotated[int, Range(2)] | None = None
    """Longest context of the server that wrote the log, in tokens."""
    in_flight: Annotated[int, Range(1)] = 1
    """Requests decoded together, for methods that draft from other answers."""
    prompts: Annotated[int, Range(1)] | None = None
    """Number of requests to replay, drawn as `decide` draws them; None for all."""
    seed: int = 0
    """Seed of the draw; the seed of a `decide` run draws the requests that it sends first."""
    warm: Annotated[int, Range(0)] = 0
    """Number of requests at the start of the log that fill a method's memory and do not count."""
    to_the_end: bool = False
    """Whether drafts reach up to the last token of max_tokens, as vLLM's do."""
    forced: bool = False
    """Whether to decode every answer again, step by step: slower, but exact for every method."""
    draft_url: str | None = None
    """Server of the draft model: its prompt_logprobs replace the models."""
    target_url: str | None = None
    """Server of the target; required if drafts are sampled."""
    dtype: str | None = None
    """Precision of the models; None for the target's."""
    device: str | None = None
    """Device of the models; None to choose it automatically."""
    max_num_seqs: Annotated[int, Range(1)] | None = None
    """Requests that models replay together; None for 64 on a GPU, else 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult(Result):
    """The acceptance of every candidate on the log."""

    VERB: ClassVar[str] = "replay"
    JSON_OF: ClassVar[str] = "profile"
    profile: Profile = field(metadata=HIDDEN)
    directory: Path = field(metadata=HIDDEN)
    """Folder with the profile and a report of it."""

    @property
    def exit_code(self) -> int:
        """1 if a finding is an error."""
        return int(any(finding.severity is Severity.ERROR for finding in self.profile.findings))


@verb(ReplayRequest)
def replay(request: ReplayRequest, progress: Progress) -> ReplayResult:
    """Replay a log, prompts with their answers, and compute which of each candidate's draft tokens would be accepted.

    Takes the answers as the target wrote them, so acceptance at their temperature is exact, for every k at once. ngram
    and suffix need only the text; other methods load the target and their drafter.

    A step of `progress` is one request of one candidate. If a stop is requested, `Stopped` is raised; the same request
    continues with the rest.
    """
    if request.group_by is not None and request.group_by not in tuple(Grouping):
        refuse(f"Unknown grouping {request.group_by!r}: give one of {', '.join(Grouping)}.", where="--group-by")
    target = Path(request.target)
    loaded = load_workloads(request.log, takes_ids=True, keeps_times=False, seed=request.seed)
    prompts = tuple(prompt for workload in loaded for prompt in _draw(workload, request))
    rows = sum(len(workload.prompts) for workload in loaded)
    checkpoint = _unpack(target, progress)
    transcripts = read_transcripts(
        prompts,
        _find_encoder(checkpoint, prompts),
        name=Path(request.log.partition("#")[0]).name,
        default_temperature=request.default_temperature,
        group_by=None if request.group_by is None else Grouping(request.group_by),
        max_model_len=request.max_model_len,
    )
    transcripts = replace(transcripts, findings=(*report_left_out(loaded), *transcripts.findings))
    if rows > len(prompts):
        skipped = {**transcripts.skipped, "not-drawn": rows - len(prompts)}
        transcripts = replace(transcripts, skipped=skipped)
    seen, transcripts = _split_off(transcripts, request.warm)
    workshop = _Workshop(
        target=checkpoint,
        ks=read_ks(request.ks),
        longest=max(each.num_tokens for each in (*seen, *transcripts.requests)),
        in_flight=request.in_flight,
        warm=seen,
        forced=request.forced,
        target_url=request.target_url,
        draft_url=request.draft_url,
        settings={name: getattr(request, name) for name in ("dtype", "device", "max_num_seqs", "max_model_len")},
    )
    chosen = [workshop.make_candidate(require_spec(each, "--candidate")) for each in request.candidates]
    directory = ReplayDirectory.open(Path(request.out), _make_plan(request, seen, transcripts, chosen))
    profile, anchors = replay_candidates(
        directory,
        transcripts,
        chosen,
        target=_describe(target.name or str(target.resolve()), checkpoint),
        rows=rows,
        limited=not request.to_the_end,
        advance=_Steps(progress, len(chosen) * len(transcripts.requests)).advance,
    )
    directory.write(PAGE, render_replay(profile, anchors))
    return ReplayResult(profile=profile, directory=Path(request.out))


def _draw(workload: Workload, request: ReplayRequest) -> Sequence[Prompt]:
    """Return the requests to replay of a workload, in the order of the log: some methods remember earlier ones."""
    if request.prompts is None:
        return workload.prompts
    drawn = draw(workload.prompts, request.seed, workload.name)[: request.prompts]
    return sorted(drawn, key=lambda each: 0 if each.origin is None else each.origin.row)


class _Steps:
    """Reports the requests of a replay one by one, and ends it when a stop is requested."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._done = progress, 0
        progress.plan(total, None)

    def advance(self, label: str) -> None:
        self._done += 1
        self._progress.step(self._done, text=label)
        check_stop(self._progress)


def read_ks(given: str | Sequence[int]) -> tuple[int, ...]:
    """Return draft lengths, given as numbers or as text with commas between them.

    Raises:
        InvalidRequest: they are something else.
    """
    try:
        ks = tuple(int(each) for each in (given.split(",") if isinstance(given, str) else given) if each)
    except ValueError:
        refuse("give numbers, such as 1,3,5.", where="--k")
    if any(k < 1 for k in ks):
        refuse("each must be 1 or more.", where="--k")
    return ks


def _make_plan(
    request: ReplayRequest, seen: Sequence[Transcript], transcripts: Transcripts, chosen: Sequence[ReplayCandidate]
) -> dict[str, Any]:
    """Return what must be the same for a replay to go on."""
    urls = f"{request.draft_url} {request.target_url}"
    return {
        "draftwise": __version__,
        "requests_sha256": hash_transcripts(transcripts.requests),
        "target": str(request.target),
        "candidates": [{**each.spec.to_dict(), "k": list(each.ks)} for each in chosen],
        "in_flight": request.in_flight,
        "forced": request.forced,
        **({} if not seen else {"warm_sha256": hash_transcripts(seen)}),
        **({} if request.draft_url is None else {"servers_sha256": sha256(urls.encode()).hexdigest()}),
        "max_model_len": request.max_model_len,
        "dtype": request.dtype,
    }


def _split_off(transcripts: Transcripts, warm: int) -> tuple[Sequence[Transcript], Transcripts]:
    """Return the requests at the log's beginning that are only remembered, and the others."""
    if warm >= len(transcripts.requests):
        raise refusal("nothing-behind-warm", warm=warm, number=len(transcripts.requests))
    if not warm:
        return (), transcripts
    skipped = {**transcripts.skipped, "warm-up": warm}
    return transcripts.requests[:warm], replace(transcripts, requests=transcripts.requests[warm:], skipped=skipped)


def _find_encoder(target: Path, prompts: Sequence[Prompt]) -> Encoder | None:
    """Return the target's tokenizer. None where no row needs it, or it cannot be used."""
    if not needs_encoder(prompts):
        return None
    try:
        from draftwise.engine.text.tokenizer import Tokenizer
    except ModuleNotFoundError:
        return None
    return Tokenizer.from_pretrained(target)


def _unpack(target: Path, progress: Progress) -> Path:
    """Return a target's checkpoint: for a GGUF file the folder that it is unpacked into, if the engine is there."""
    if not is_gguf(target):
        return target
    try:
        from draftwise.engine.models.gguf_unpacking import checkpoint_of
    except ModuleNotFoundError:
        return target
    return Path(checkpoint_of(str(target), progress.status))


def _describe(name: str, checkpoint: Path) -> ReplayedTarget:
    file = checkpoint / "tokenizer.json"
    digest = sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    return ReplayedTarget(name=name, tokenizer_sha256=digest)


_PREFIX = "suffix_decoding_"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workshop:
    """Chooses what replays a candidate: text alone, servers, or an engine with the target and its drafter."""

    target: Path
    ks: tuple[int, ...]
    """The k that were asked for; empty: all."""
    longest: int
    """Tokens of the longest request with its answer."""
    in_flight: int
    """Requests that are decoded together, for what is drafted from other answers."""
    warm: Sequence[Transcript] = ()
    """Earlier requests, which a method that remembers answers has seen."""
    forced: bool
    """Whether everything is replayed by forced decoding."""
    settings: Mapping[str, Any]
    """Engine settings; None keeps the default."""
    target_url: str | None = None
    draft_url: str | None = None
    """Address of the draft model's server; None if the model is on disk."""

    def make_candidate(self, spec: SpecConfig) -> ReplayCandidate:
        """Return a candidate with what replays it.

        Raises:
            InvalidSetup: it cannot be replayed.
        """
        resolved = resolve_spec(spec)
        _refuse_rule(resolved)
        ks = choose_ks(resolved.k, self.ks)
        whole = replace(spec, method=resolved.method, num_speculative_tokens=ks[-1])
        from_text = get_method(resolved.method).drafts_from == "text" and not self.forced
        if from_text:
            make = self._from_text(resolved, ks)
        elif self.draft_url is not None and get_method(resolved.method).drafts_from == "own_model":
            make = self._from_servers(whole, resolved, ks)
        else:
            make = self._from_engine(whole, resolved, ks)
        return ReplayCandidate(spec=whole, ks=ks, make=make)

    def _from_text(self, resolved: ResolvedSpec, ks: tuple[int, ...]) -> Callable[[], Replayer]:
        if get_method(resolved.method).remembers != "answers":
            shortest, longest = resolved.prompt_lookup_min, resolved.prompt_lookup_max
            return partial(NgramReplayer, k=ks[-1], shortest=shortest, longest=longest)
        given = resolved.to_dict().items()
        options = {key.removeprefix(_PREFIX): value for key, value in given if key.startswith(_PREFIX)}
        return partial(SuffixReplayer, ks=ks, options=options, in_flight=self.in_flight, warm=self.warm)

    def _from_servers(self, spec: SpecConfig, resolved: ResolvedSpec, ks: tuple[int, ...]) -> Callable[[], Replayer]:
        if spec.options.get("parallel_drafting") or self.forced:
            raise refusal("served-drafts-are-chains", label=spec.label)
        if resolved.probabilistic and self.target_url is None:
            raise refusal("sampled-drafts-need-target", label=spec.label)
        return partial(self._ask, ks[-1], sampled=resolved.probabilistic)

    def _ask(self, k: int, *, sampled: bool) -> Replayer:
        from draftwise.backends.asking import Scorer

        assert self.draft_url is not None
        target = Scorer(self.target_url).score if sampled and self.target_url is not None else None
        return ServedReplayer(k=k, draft=Scorer(self.draft_url).score, target=target)

    def _from_engine(self, spec: SpecConfig, resolved: ResolvedSpec, ks: tuple[int, ...]) -> Callable[[], Replayer]:
        if find_spec("torch") is None:
            raise refusal("replay-needs-engine", label=spec.label, install=tell_install("engine"))
        if self.forced and resolved.probabilistic:
            raise refusal("forced-needs-greedy-drafts", label=spec.label)
        return partial(self._open, spec, ks)

    def _open(self, spec: SpecConfig, ks: tuple[int, ...]) -> Replayer:
        from draftwise.engine.replayers import open_replayer

        return open_replayer(spec, self.target, ks, longest=self.longest, forced=self.forced, settings=self.settings)


def _refuse_rule(resolved: ResolvedSpec) -> None:
    if not isinstance(resolved.acceptance, Standard):
        raise refusal("replay-needs-lossless", method=resolved.method)
    if resolved.acceptance.by_block and resolved.probabilistic:
        raise refusal("replay-judges-tokens", method=resolved.method)
