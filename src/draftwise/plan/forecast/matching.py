"""Which calibrated servers were replayed."""

from __future__ import annotations

from draftwise.core import Acceptance, CalibratedSetting, Calibration, Profile

__all__ = ["match_settings"]


def match_settings(profile: Profile, calibration: Calibration) -> list[tuple[CalibratedSetting, Acceptance]]:
    """Return the calibrated servers with what was replayed of them, by temperature and group.

    A server that tells its resolved config may have more keys than what was replayed: where a method is calibrated
    once and replayed in one form, they are the same.
    """
    found = []
    for setting in calibration.candidates:
        assert setting.spec is not None
        method = setting.spec.method
        same = [each for each in profile.entries if _without_k(each) == _strip(setting.spec.to_dict())]
        if not same and sum(each.spec is not None and each.spec.method == method for each in calibration.settings) == 1:
            alike = [each for each in profile.entries if each.method == method]
            same = alike if len({str(sorted(_without_k(each).items())) for each in alike}) == 1 else []
        found += [(setting, each) for each in same]
    return found


def _without_k(entry: Acceptance) -> dict[str, object]:
    return _strip(entry.candidate.to_dict())


def _strip(spec: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in spec.items() if key != "num_speculative_tokens"}
