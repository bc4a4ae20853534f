from draftwise.knowledge.methods import methods_where


def test_the_engine_runs_the_methods_that_the_table_says_it_runs():
    assert all(callable(method.load("proposer")) for method in methods_where(embedded=True).values())
