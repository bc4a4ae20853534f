"""Drift of acceptance in a service's own counters: season, noise and limits that are fitted to the service."""

from draftwise.watching.drift.cusum import Form
from draftwise.watching.drift.model import CONFOUNDERS, LEARN_DAYS, Drift, DriftModel, find_learned_days, fit_model
from draftwise.watching.drift.rows import ROW_S, Rows, WindowRow

__all__ = [
    "CONFOUNDERS",
    "LEARN_DAYS",
    "ROW_S",
    "Drift",
    "DriftModel",
    "Form",
    "Rows",
    "WindowRow",
    "find_learned_days",
    "fit_model",
]
