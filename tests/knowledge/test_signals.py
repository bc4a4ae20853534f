"""Quantities that decisions name are made of metrics that operators scrape."""

import pytest

from draftwise.knowledge.metrics import METRICS
from draftwise.knowledge.signals import LOAD_SIGNALS, SIGNALS, get_signal


def test_every_signal_is_made_of_known_metrics_and_is_found_by_its_name() -> None:
    for signal in SIGNALS:
        assert signal.metrics
        assert set(signal.metrics) <= set(METRICS)
        assert get_signal(signal.name) is signal
    assert set(LOAD_SIGNALS.values()) <= set(SIGNALS)


def test_a_quantile_is_of_a_histogram() -> None:
    for signal in SIGNALS:
        kinds = {metric.kind for metric in signal.metrics}
        assert (signal.quantile is not None) == (kinds == {"histogram"})


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(KeyError):
        get_signal("tokens")
