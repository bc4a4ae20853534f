"""Readies README.md and pyproject.toml for a package page: `python -m docs.package_page REPOSITORY TAG`.

A package page has no files next to it, so every relative link becomes the repository's page at the tag, and the version
becomes the tag's. The release workflow runs this before it builds; nothing of it is committed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def absolute_links(text: str, repository: str, tag: str) -> str:
    """Return a page whose relative links and pictures are found from anywhere."""
    linked = re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{repository}/blob/{tag}/", text)
    return re.sub(r'(<img [^>]*src=")(?!https?:)', rf"\g<1>{repository}/raw/{tag}/", linked)


def add_urls(project: str, repository: str) -> str:
    """Return pyproject.toml with the repository's pages next to the site."""
    pages = {"Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    lines = "".join(f'{name} = "{repository}{path}"\n' for name, path in pages.items())
    return project.replace("[project.urls]\n", f"[project.urls]\n{lines}", 1)


def set_version(module: str, tag: str) -> str:
    """Return version.py with the version of a tag such as v0.1.0.

    Raises:
        ValueError: the tag is no version.
    """
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        raise ValueError(f"{tag} is not a version such as v0.1.0 or v0.2.0rc1")
    return re.sub(r'^__version__ = ".*"$', f'__version__ = "{tag[1:]}"', module, flags=re.MULTILINE)


def main() -> None:
    """Change the files."""
    repository, tag = sys.argv[1].rstrip("/"), sys.argv[2]
    version, readme, project = ROOT / "src/draftwise/version.py", ROOT / "README.md", ROOT / "pyproject.toml"
    made = {
        version: set_version(version.read_text(encoding="utf-8"), tag),
        readme: absolute_links(readme.read_text(encoding="utf-8"), repository, tag),
        project: add_urls(project.read_text(encoding="utf-8"), repository),
    }
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
