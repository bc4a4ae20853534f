from draftwise.knowledge.methods import methods_where
from draftwise.plan.pick.methods import _MAKERS


def test_every_method_of_the_table_is_proposed_or_refused() -> None:
    assert set(_MAKERS) == set(methods_where())
