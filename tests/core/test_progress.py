"""What a long verb reports to, and how it is asked to stop."""

import pytest

from draftwise.core import Finding
from draftwise.core.progress import Progress, Silent, Stopped, check_stop


class _Stopping(Silent):
    stop_requested = True


def test_the_silent_progress_takes_everything_and_never_stops() -> None:
    progress: Progress = Silent()
    progress.status("warming up")
    progress.plan(10, 2.0)
    progress.step(1)
    progress.notice(Finding.info("left-out", "Something is left out."))
    check_stop(progress)


def test_a_verb_that_is_asked_to_stop_stops() -> None:
    with pytest.raises(Stopped):
        check_stop(_Stopping())
