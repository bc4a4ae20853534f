"""What a child process builds instead of an engine, by name."""

import os
import time

from draftwise.core import Finding, InvalidSetup, Severity
from tests.support.fake_engine import FakeEngine


def build_paused(config, spec, startup):
    """An engine that pauses after three steps."""
    engine = FakeEngine(config.model)
    engine.steps = 3
    return engine


def build_in_phases(directory, startup):
    with startup.phase("load weights"):
        engine = FakeEngine(directory, k=2)
    engine.findings = (Finding(code="c", severity=Severity.WARNING, message="slow."),)
    return engine


def build_wrongly(startup):
    raise InvalidSetup.because("kv-cache-too-small", "too small.", where="max_model_len", fix="Lower it.")


def build_brokenly(startup):
    raise RuntimeError("no kernel image")


def build_and_die(startup):
    os._exit(7)


def build_for_ever(startup):
    with startup.phase("load weights"):
        while True:
            time.sleep(60)
