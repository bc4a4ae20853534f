from draftwise.knowledge.methods import methods_where
from draftwise.training import get_training
from draftwise.training.method import DrafterTraining


def test_the_methods_that_the_table_calls_trainable_have_a_trainer():
    assert all(issubclass(get_training(name), DrafterTraining) for name in methods_where(trainable=True))


def test_a_trainer_bears_the_name_of_its_method():
    assert all(get_training(name).name == name for name in methods_where(trainable=True))
