import pytest

from draftwise.engine.proposers import find_builder
from draftwise.facts.methods import methods_where


@pytest.mark.parametrize("name", methods_where(embedded=True))
def test_a_method_that_the_table_says_the_engine_runs_has_a_proposer(name: str):
    assert find_builder(name).__module__ == f"draftwise.engine.proposers.{name}"
