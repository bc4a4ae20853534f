import pytest

from draftwise.knowledge.methods import methods_where
from draftwise.training import get_training
<<<<<<< e9587aa5bb34c10f5122c37405eecd70bfd22229
from draftwise.training.method import DrafterTraining


def test_the_methods_that_the_table_calls_trainable_have_a_trainer():
    assert all(issubclass(get_training(name), DrafterTraining) for name in methods_where(trainable=True))


def test_a_trainer_bears_the_name_of_its_method():
    assert all(get_training(name).name == name for name in methods_where(trainable=True))
=======


@pytest.mark.parametrize("name", methods_where(trainable=True))
def test_a_method_that_the_table_calls_trainable_has_a_trainer_of_its_name(name: str):
    assert get_training(name).name == name
>>>>>>> f949382b6b09ab40139fb4255183ec6047de79b6
