"""Which candidates a forecast leaves out, and which it must not."""

from draftwise.core import Expectation, SpecConfig
from draftwise.plan.forecast.run_cells import find_hopeless, is_config_of


def expect(candidate: str, low: float, high: float, *, load: str = "c=1") -> Expectation:
    return Expectation(candidate=candidate, workload="code", load=load, value=(low * high) ** 0.5, low=low, high=high)


def test_what_lies_below_the_best_or_below_one_everywhere_is_hopeless_and_the_reason_has_the_numbers() -> None:
    expected = [expect("good", 1.4, 1.6), expect("worse", 1.1, 1.3), expect("slow", 0.7, 0.9), expect("near", 1.3, 1.5)]
    found = find_hopeless(expected, ["good", "worse", "slow", "near"], num_cells=1, margin=0.03)
    assert found == {
        "worse": "its forecast of 1.10-1.30x on code at c=1 stays below good's 1.40-1.60x",
        "slow": "its forecast of 0.70-0.90x on code at c=1 stays below good's 1.40-1.60x",
    }


def test_what_may_be_best_at_one_load_stays() -> None:
    expected = [
        *(expect("a", 1.4, 1.6), expect("a", 0.9, 1.0, load="c=8")),
        *(expect("b", 1.0, 1.2), expect("b", 1.0, 1.2, load="c=8")),
    ]
    assert find_hopeless(expected, ["a", "b"], num_cells=2, margin=0.03) == {}


def test_what_is_not_forecast_in_every_cell_stays() -> None:
    expected = [expect("a", 1.4, 1.6), expect("a", 1.4, 1.6, load="c=8"), expect("b", 0.5, 0.6)]
    assert find_hopeless(expected, ["a", "b", "c"], num_cells=2, margin=0.03) == {}


def test_where_nothing_is_forecast_to_pay_the_most_promising_is_measured() -> None:
    expected = [expect("a", 0.6, 0.8), expect("b", 0.8, 0.9)]
    assert find_hopeless(expected, ["a", "b"], num_cells=1, margin=0.03).keys() == {"a"}


def test_configs_are_of_one_drafter_where_nothing_but_k_differs() -> None:
    head = SpecConfig.parse({"method": "eagle3", "model": "A", "num_speculative_tokens": 3})
    told = SpecConfig.keep({"method": "eagle3", "model": "A", "num_speculative_tokens": 7, "max_model_len": 512})
    assert is_config_of(head, told)
    assert not is_config_of(head, SpecConfig.parse({"method": "eagle3", "model": "B", "num_speculative_tokens": 3}))
    assert not is_config_of(head, SpecConfig.parse({"method": "eagle3", "num_speculative_tokens": 3}))
