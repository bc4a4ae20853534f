"""The version of the package, and where it was installed from."""

__version__ = "0.1.0"


def tell_install(extra: str) -> str:
    """Return how to add an extra. It comes from where this installation came from."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.request import url2pathname

    try:
        source = json.loads(distribution("draftwise").read_text("direct_url.json") or "{}")
        is_gone = source.get("url", "").startswith("file:") and not Path(url2pathname(source["url"][5:])).exists()
    except (PackageNotFoundError, ValueError):
        is_gone = True
    if is_gone:
        return f'In a clone of draftwise, run: pip install ".[{extra}]".'
    scheme = "git+" if "vcs_info" in source else ""
    place = f" @ {scheme}{source['url']}" if source else ""
    return f'Run: pip install "draftwise[{extra}]{place}".'
