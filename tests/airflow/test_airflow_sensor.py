"""``TrainingProgressSensor`` on a real Airflow: what nobody of us has started ends, passes a step, or hangs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.airflow.harness import Harness

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]


class Training:
    """Writes a step each half second, until a step; then, maybe, that it is over."""

    def __init__(self, path: Path, steps: int, last_words: str = "") -> None:
        self.path, self._steps, self._last_words = path, steps, last_words
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self) -> None:
        with self.path.open("w") as log:
            for step in range(1, self._steps + 1):
                if self._over.wait(0.5):
                    return
                log.write(f"step={step} loss={3 / step:.3f}\n")
                log.flush()
            log.write(self._last_words)

    def stop(self) -> None:
        """Write no more."""
        self._over.set()
        self._thread.join()


@pytest.mark.row("P8")
@pytest.mark.row("S6")
def test_a_training_of_somebody_else_ends_passes_a_step_or_hangs(airflow: Harness, tmp_path: Path) -> None:
    """Deferred and in the worker; what hangs fails with the verdict as its reason."""
    trainings = {
        "ends": Training(tmp_path / "ends.log", 60, "Training completed.\n"),
        "hangs": Training(tmp_path / "hangs.log", 40),
        "goes-on": Training(tmp_path / "goes-on.log", 4_000),
    }
    try:
        ends = airflow.start("sensor", name="ends", log=str(tmp_path / "ends.log"))
        hangs = airflow.start("sensor", name="hangs", log=str(tmp_path / "hangs*.log"))
        passes = airflow.start("sensor", name="passes", log=str(tmp_path / "goes-on.log"), until=30)
        inside = airflow.start("sensor_in_the_worker", name="inside", log=str(tmp_path / "goes-on.log"), until=40)
        airflow.wait_ended([ends, hangs, passes, inside])
        assert [airflow.state(run) for run in (ends, hangs, passes, inside)] == [
            "success",
            "failed",
            "success",
            "success",
        ]
        assert "No step after step 40" in airflow.client.log(*hangs.key, 1)
        assert "has passed 30" in airflow.client.log(*passes.key, 1)
        assert "has passed 40" in airflow.client.log(*inside.key, 1)
    finally:
        for training in trainings.values():
            training.stop()
