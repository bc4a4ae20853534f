"""The OpenAPI document says what the server does: its paths, its methods, and the fields of bodies."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwise.serve.request_fields import make_document

DOCUMENT = make_document()
POSTS = sorted(path for path, item in DOCUMENT["paths"].items() if "requestBody" in item.get("post", {}))
WRONG = [True, 0.5, "x", [{}], {"a": []}, [[1, "a"]]]


@pytest.mark.parametrize("path", sorted(DOCUMENT["paths"]))
def test_every_path_is_there(shared, path):
    url = path.replace("{name}", "m")
    for method in DOCUMENT["paths"][path].keys() & {"get", "post"}:
        answer = shared.http.request(method, url, **({"json": {}} if path in POSTS else {}))
        assert answer.status_code == (400 if path in POSTS else 200)
    assert shared.http.request("DELETE", url).status_code == 405
    if "post" not in DOCUMENT["paths"][path]:
        assert shared.http.post(url).status_code == 405


def test_the_server_shows_it(shared):
    assert shared.http.get("/openapi.json").json() == json.loads(json.dumps(DOCUMENT))


def fits(value, schema):
    """Return whether a value has the type of a schema."""
    import jsonschema

    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("path", POSTS)
@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_does_not_fit_is_refused_with_the_field(shared, path, data):
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name, value = data.draw(st.sampled_from(sorted(schema["properties"]))), data.draw(st.sampled_from(WRONG))
    base = {"prompt": "a"} if path in ("/v1/completions", "/tokenize") else {}
    base |= {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {}
    base |= {"tokens": [65]} if path == "/detokenize" else {}
    answer = shared.http.post(path, json=base | {name: value})
    if not fits(value, schema["properties"][name]):
        assert answer.status_code in (400, 404)
    assert answer.status_code < 500
