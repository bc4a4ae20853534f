"""Builds the documentation site: `python -m docs.site` (`make docs`) writes `build/docs/site`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.assemble import ROOT, assemble


def build(folder: Path) -> Path:
    """Assemble the pages in a folder and build the site from them, strictly; return the site's folder.

    Raises:
        subprocess.CalledProcessError: a link leads nowhere, or a page cannot be rendered.
    """
    shutil.rmtree(folder, ignore_errors=True)
    assemble(folder / "pages")
    shutil.copy(Path(__file__).with_name("zensical.toml"), folder)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, check=True)
    return folder / "site"


if __name__ == "__main__":
    print(build(ROOT / "build" / "docs"))
