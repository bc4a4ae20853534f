from draftwise.knowledge.methods import methods_where
from draftwise.training import _TRAINERS, get_training


def test_the_methods_that_the_table_calls_trainable_have_a_trainer():
    assert set(_TRAINERS) == set(methods_where(trainable=True))


def test_a_trainer_bears_the_name_of_its_method():
    assert {name: get_training(name).name for name in _TRAINERS} == {name: name for name in _TRAINERS}
