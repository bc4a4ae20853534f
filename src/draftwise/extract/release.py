"""Reads a release into tables by topic, and adds it to this user's facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import Version

from draftwise.extract import (
    choices,
    config_checks,
    config_fields,
    engine,
    gpu_limits,
    judged_functions,
    message_texts,
    model_registry,
    mtp_remap,
    server_surface,
    speculative,
    vllm_flags,
)
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import NotFound, Tree
from draftwise.extract.wheel_sources import VllmSources
from draftwise.knowledge.added import AddedRelease, write_release
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.vllm import forget_added, releases, topics
from draftwise.version import __version__

TOPICS: Mapping[str, Callable[[Tree], Facts]] = {
    function.__name__: function
    for function in (
        speculative.methods,
        speculative.spec_fields,
        speculative.spec_rules,
        speculative.method_inference,
        speculative.aux_targets,
        mtp_remap.mtp_remap,
        mtp_remap.mtp_places,
        model_registry.architectures,
        model_registry.speculators_types,
        model_registry.config_model_types,
        model_registry.feed_forward,
        vllm_flags.flags,
        vllm_flags.engine_defaults,
        config_fields.config_fields,
        config_checks.config_arguments,
        config_checks.config_changes,
        config_checks.config_checks,
        config_checks.engine_checks,
        config_checks.validators,
        engine.batch_defaults,
        engine.cudagraph_sizes,
        engine.async_scheduling,
        engine.runner_v2,
        choices.attention_backends,
        choices.noncausal_backends,
        choices.quantization_methods,
        gpu_limits.cache_backends,
        gpu_limits.weight_schemes,
        choices.kv_cache_dtypes,
        choices.kv_connectors,
        choices.ir_providers,
        choices.moe_backends,
        choices.reasoning_parsers,
        choices.tool_parsers,
        server_surface.metrics,
        server_surface.sampling_params,
        server_surface.env,
        message_texts.messages,
        judged_functions.probes,
        judged_functions.judged,
    )
}


Extractors = Mapping[str, Callable[[Tree], Facts]]


def add_release(sources: VllmSources, extractors: Extractors = TOPICS) -> AddedRelease:
    """Read a release and store its tables. Replaces an earlier addition of the same release.

    A topic that cannot be read is left out, with the reason in `AddedRelease.missing`. What needs it is *not judged*.

    Raises:
        InvalidSetup: the release ships with draftwise, is older than all shipped ones, or has no readable topic.
        StorageError: the user's data folder cannot be written.
    """
    version = Version(sources.version.public)
    refuse_known(version)
    tables, missing = read_tables(sources.root, str(version), extractors)
    missing |= _find_emptied(version, tables)
    tables = {topic: table for topic, table in tables.items() if topic not in missing}
    if not any(tables.values()):
        why = next(iter(missing.values()), "")
        raise refusal("facts-no-sources", case="nothing", version=version, read_from=sources.read_from, why=why)
    release = AddedRelease(
        version=str(version),
        built=sources.built,
        read_from=sources.read_from,
        sha256=sources.sha256,
        added=datetime.now(UTC).date().isoformat(),
        draftwise=__version__,
        topics=sorted(tables),
        missing=missing,
    )
    write_release(release, tables)
    forget_added()
    return release


def read_tables(root: Path, version: str, extractors: Extractors = TOPICS) -> tuple[dict[str, Facts], dict[str, str]]:
    """Return the table of each topic, and for each unreadable topic the reason as a sentence."""
    tree = Tree(root, version)
    tables: dict[str, Facts] = {}
    missing: dict[str, str] = {}
    for topic, extract in extractors.items():
        try:
            tables[topic] = extract(tree)
        except NotFound as error:
            missing[topic] = f"{error}."
        except Exception as error:  # code that nobody has seen: whatever it trips must not be taken for a fact
            missing[topic] = f"Its sources are not understood ({type(error).__name__}: {error})."
    return tables, missing


def _find_emptied(version: Version, tables: Mapping[str, Facts]) -> dict[str, str]:
    """Return the topics that are empty and were not in the release before, with why they are not believed.

    A parser that finds nothing says that the thing does not exist yet; in a newer release it may have moved.
    """
    before = next((each for each in reversed(releases()) if each.added is None and each.version < version), None)
    if before is None:
        return {}
    rows = {topic: len(before.table(topic)) for topic, table in tables.items() if not table and topic in topics()}
    return {
        topic: f"It is empty, although that of {before} has {count} rows: what it is read from may have moved."
        for topic, count in rows.items()
        if count
    }


def refuse_known(version: Version) -> None:
    """Raise InvalidSetup for a release that ships with draftwise, or is older than all shipped ones."""
    shipped = [release.version for release in releases() if release.added is None]
    if version in shipped:
        raise refusal("facts-shipped", version=version)
    if version < shipped[0]:
        raise refusal("facts-too-old", version=version, shipped=shipped[0])
