"""Each prompt's states reach its file whole, in order and once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.confirming import confirm

from draftwise.core import InvalidSetup
from draftwise.engine.proposers.extract_hidden_states import ExtractHiddenStatesProposer, hidden_states_path
from draftwise.engine.proposers.proposer import Confirmed

AUX_LAYERS, WIDTH = (0, 2, 3), 4


def states(prompt: list[int], length: int) -> torch.Tensor:
    """Return states [T, N, H] that tell prompts, positions, layers and values apart."""
    base = torch.arange(length * len(AUX_LAYERS) * WIDTH, dtype=torch.float32) + 1000 * sum(prompt)
    return base.view(length, len(AUX_LAYERS), WIDTH).bfloat16()


def confirmed(new_tokens: dict[int, tuple[list[int], list[int], range]]) -> Confirmed:
    """Tell tokens at the given positions: slot -> (prompt, output, positions)."""
    return confirm(
        [[(prompt + output)[i] for i in positions] for prompt, output, positions in new_tokens.values()],
        starts=[positions.start for _, _, positions in new_tokens.values()],
        limits=[0] * len(new_tokens),
        slots=list(new_tokens),
        num_prompt=[len(prompt) for prompt, _, _ in new_tokens.values()],
        histories=[prompt + output for prompt, output, _ in new_tokens.values()],
        features_NF=torch.cat(
            [
                states(prompt, len(prompt + output))[positions.start - 1 : positions.stop - 1].flatten(1)
                for prompt, output, positions in new_tokens.values()
            ]
        ),
    )


def make(folder: Path) -> ExtractHiddenStatesProposer:
    return ExtractHiddenStatesProposer(aux_layers=AUX_LAYERS, folder=folder)


def check(folder: Path, prompt: list[int]) -> None:
    tensors = load_file(hidden_states_path(folder, prompt))
    assert tensors["token_ids"].dtype == torch.int64
    assert tensors["token_ids"].tolist() == prompt
    torch.testing.assert_close(tensors["hidden_states"], states(prompt, len(prompt)), rtol=0, atol=0)


def test_prompts_are_written_when_their_first_output_token_is_known(tmp_path: Path) -> None:
    long, short, proposer = [3, 1, 4, 1, 5, 9, 2], [6, 5, 3], make(tmp_path / "new" / "folder")
    proposer.propose(confirmed({0: (long, [8], range(1, 4)), 1: (short, [7], range(1, 3))}), 1)
    assert list(proposer._folder.iterdir()) == []
    draft = proposer.propose(confirmed({1: (short, [7, 9], range(3, 5)), 0: (long, [8], range(4, 7))}), 1)
    assert [path.name for path in proposer._folder.iterdir()] == [hidden_states_path("", short).name]
    assert draft.lengths_B.tolist() == [0, 0]
    proposer.propose(confirmed({0: (long, [8], range(7, 8)), 1: (short, [7, 9, 2], range(5, 6))}), 1)
    for prompt in (long, short):
        check(proposer._folder, prompt)
    assert len(list(proposer._folder.iterdir())) == 2


def test_a_prompt_of_one_token(tmp_path: Path) -> None:
    make(tmp_path).propose(confirmed({4: ([11], [5], range(1, 2))}), 0)
    check(tmp_path, [11])


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    prompt, proposer = [2, 7, 1], make(tmp_path)
    file = hidden_states_path(tmp_path, prompt)
    file.write_bytes(b"of an earlier run")
    proposer.propose(confirmed({0: (prompt, [8], range(1, 4))}), 1)
    assert file.read_bytes() == b"of an earlier run"
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupted_prompt_starts_again(tmp_path: Path) -> None:
    prompt, proposer = [2, 7, 1, 8], make(tmp_path)
    proposer.propose(confirmed({0: (prompt, [], range(1, 3))}), 1)
    proposer.release(0)
    assert list(tmp_path.iterdir()) == []
    proposer.propose(confirmed({0: (prompt, [2], range(1, 5))}), 1)
    check(tmp_path, prompt)


def test_a_fork_that_computed_no_prompt_writes_nothing(tmp_path: Path) -> None:
    make(tmp_path).propose(confirmed({3: ([2, 7, 1], [8], range(3, 4))}), 1)
    assert list(tmp_path.iterdir()) == []


def test_layers_are_kept_in_ascending_order_once(tmp_path: Path) -> None:
    proposer = ExtractHiddenStatesProposer(aux_layers=(3, 0, 3), folder=tmp_path)
    assert proposer.aux_layers == (0, 3)


def test_what_cannot_work_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as error:
        ExtractHiddenStatesProposer(aux_layers=(), folder=tmp_path)
    assert error.value.findings[0].code == "no-layers"
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSetup) as error:
        make(tmp_path / "file")
    assert error.value.findings[0].code == "folder-not-writable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidSetup):
        make(tmp_path)
