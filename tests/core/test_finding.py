"""A finding as one line of text: where, what and what to do, nothing twice."""

import pytest

from draftwise.core import Finding, Severity


@pytest.mark.parametrize(
    ("where", "message", "text"),
    [
        ("", "No GPU is named.", "No GPU is named."),
        ("model", "There is none.", "model: There is none."),
        ("max_model_len", "max_model_len is 0.", "max_model_len is 0."),
        ("--max-model-len", "max_model_len is 0.", "max_model_len is 0."),
        ("KV cache", "3 layers keep a state.", "KV cache: 3 layers keep a state."),
    ],
)
def test_the_place_stands_first_unless_the_message_names_it(where, message, text):
    finding = Finding(code="x", severity=Severity.ERROR, message=message, where=where)
    assert str(finding) == text


def test_the_fix_stands_last():
    finding = Finding(code="x", severity=Severity.ERROR, message="k is 0.", where="k", fix="Give 1.")
    assert str(finding) == "k is 0. Give 1."
