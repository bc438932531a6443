"""The demo's training script, run by a real torchrun: what recovery relies on when it restarts a training."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "dags" / "training" / "train_gpt.py"


def train(out: Path) -> str:
    """Two ranks, six steps, a checkpoint every two; what they printed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["--steps", "6", "--checkpoint-every", "2", "--out", str(out)]
    done = subprocess.run(
        [*launcher, str(SCRIPT), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return done.stdout


def losses(output: str) -> dict[int, float]:
    """The loss of each step that was printed."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+)/6 loss (\S+)", output, re.MULTILINE)}


@pytest.mark.torch
def test_resume_skips_a_broken_checkpoint_and_repeats_the_very_steps(tmp_path: Path) -> None:
    """The newest file is cut: the one before is loaded, and the steps after it have the losses of the first run."""
    first = train(tmp_path)
    assert "no checkpoint, starting at step 0" in first
    assert "training finished at step 6" in first
    newest = tmp_path / "checkpoints" / "step-000006.pt"
    newest.write_bytes(newest.read_bytes()[:1_000_000])

    second = train(tmp_path)

    assert f"checkpoint {newest} can't be read" in second
    assert f"resumed from checkpoint step 4 ({tmp_path / 'checkpoints' / 'step-000004.pt'})" in second
    assert losses(second) == {step: loss for step, loss in losses(first).items() if step > 4}
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-000002.pt",
        "step-000004.pt",
        "step-000006.pt",
    ]
