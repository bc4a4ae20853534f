import pytest

from draftwise.facts.methods import methods_where
from draftwise.train import get_training


@pytest.mark.parametrize("name", methods_where(trainable=True))
def test_a_method_that_the_table_calls_trainable_has_a_trainer_of_its_name(name: str):
    assert get_training(name).name == name
