"""Proofs of folders: whatever is changed is an error, at least where `sha256sum -c --strict` says so."""

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.adopted import SETUP

from draftwise.core import Severity, UnreadableSource
from draftwise.deploying import deploy, make_order
from draftwise.deploying.deployment_folder import CHECKSUMS, SEAL, prove

MOST = 200
Tamper = Callable[[random.Random, Path], object]


def pick(drawn: random.Random, folder: Path) -> Path:
    return drawn.choice(sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()))


def flip(drawn: random.Random, folder: Path) -> None:
    path = pick(drawn, folder)
    data = bytearray(path.read_bytes())
    data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
    path.write_bytes(data)


def edit_lines(drawn: random.Random, folder: Path) -> None:
    """Change the list of sums: lines go, come twice, lose characters, or name files elsewhere."""
    path = folder / CHECKSUMS
    lines = path.read_text().splitlines()
    index, sum_of = drawn.randrange(len(lines)), "0" * 64
    outside = drawn.choice(["../../etc/passwd", "/etc/passwd", "a/../../x", "./spec.yaml", "observe//rules.yaml"])
    match drawn.randrange(7):
        case 0:
            lines = []
        case 1:
            name = lines.pop(index)[66:]
            if drawn.random() < 0.5:
                (folder / name).write_bytes(b"other")
        case 2:
            lines.insert(index, lines[index])
        case 3:
            lines[index] = lines[index][: drawn.randrange(1, 60)]
        case 4:
            lines.append(f"{sum_of}  {outside}")
        case 5:
            lines[index] = sum_of + lines[index][64:]
        case _:
            lines.append(drawn.choice(["# comment", "junk", " ", f"{sum_of} *{lines[0][66:]}"]))
    path.write_text("".join(f"{line}\n" for line in lines))
    if drawn.random() < 0.3:
        (folder / SEAL).unlink()


def add(drawn: random.Random, folder: Path) -> None:
    name = drawn.choice(["evil.py", "model.safetensors", ".hidden", "observe/more.yaml", "new/dir/x", "CHECKSUMS.old"])
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(drawn.choice(["", "x"]))


def link(drawn: random.Random, folder: Path) -> None:
    """Put a link in the place of a file or folder, to what is the same there now."""
    path = drawn.choice([pick(drawn, folder), folder / "observe"])
    aside = folder.parent / f"aside{drawn.random()}"
    shutil.move(path, aside)
    path.symlink_to(aside)


def swap(drawn: random.Random, folder: Path) -> None:
    one, other = folder / "spec.yaml", folder / "plain.yaml"
    before = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(before)


TAMPERS: tuple[Tamper, ...] = (
    *(flip, edit_lines, add, link, swap),
    lambda drawn, folder: pick(drawn, folder).unlink(),
    lambda drawn, folder: pick(drawn, folder).write_bytes(b""),
    lambda _, folder: (folder / SEAL).write_bytes((folder / SEAL).read_bytes().replace(b"\n", b"\r\n")),
    lambda drawn, folder: pick(drawn, folder).rename(folder / "renamed"),
)


def find_errors(folder: Path) -> Iterator[str]:
    try:
        yield from (each.code for each in prove(folder) if each.severity is Severity.ERROR)
    except UnreadableSource as error:
        yield error.findings[0].code


def passes_elsewhere(folder: Path) -> bool:
    command = ["sha256sum", "-c", "--strict", "--status", CHECKSUMS]
    return (folder / CHECKSUMS).is_file() and subprocess.run(command, cwd=folder, check=False).returncode == 0


def test_no_tampering_passes(tmp_path: Path) -> None:
    original = tmp_path / "original"
    deploy(make_order(replace(SETUP)), "kubernetes").write(original)
    assert list(find_errors(original)) == []
    assert passes_elsewhere(original)
    stricter = 0
    for seed in range(MOST):
        drawn, folder = random.Random(seed), tmp_path / str(seed)
        shutil.copytree(original, folder)
        drawn.choice(TAMPERS)(drawn, folder)
        assert list(find_errors(folder)), seed
        stricter += passes_elsewhere(folder)
        shutil.rmtree(folder)
    assert 0 < stricter < MOST / 2  # the list alone says nothing of what is not in it


@pytest.mark.parametrize("name", ["../outside", "x; rm -rf ~"])
def test_a_record_with_names_of_no_deployment_is_none(tmp_path: Path, name: str) -> None:
    from draftwise.deploying.deployment_folder import read_record

    deploy(make_order(SETUP), "kubernetes").write(tmp_path / "out")
    record = tmp_path / "out" / "deployment.json"
    written = record.read_text()
    for given in ('"spec.yaml"', '"llama-3-1-8b-instruct"'):
        assert given in written
        record.write_text(written.replace(given, f'"{name}"'))
        with pytest.raises(UnreadableSource):
            read_record(tmp_path / "out")
