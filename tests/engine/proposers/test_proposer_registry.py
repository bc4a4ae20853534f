from draftwise.engine.proposers import _BUILDERS
from draftwise.knowledge.methods import methods_where


def test_the_engine_runs_the_methods_that_the_table_says_it_runs():
    assert set(_BUILDERS) == set(methods_where(embedded=True))
