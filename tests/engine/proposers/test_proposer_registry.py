<<<<<<< e9587aa5bb34c10f5122c37405eecd70bfd22229
from draftwise.knowledge.methods import methods_where


def test_the_engine_runs_the_methods_that_the_table_says_it_runs():
    assert all(callable(method.load("proposer")) for method in methods_where(embedded=True).values())
=======
import pytest

from draftwise.engine.proposers import find_builder
from draftwise.knowledge.methods import methods_where


@pytest.mark.parametrize("name", methods_where(embedded=True))
def test_a_method_that_the_table_says_the_engine_runs_has_a_proposer(name: str):
    assert find_builder(name).__module__ == f"draftwise.engine.proposers.{name}"
>>>>>>> f949382b6b09ab40139fb4255183ec6047de79b6
