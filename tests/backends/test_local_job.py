"""What a user may write, and what is told when it is wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from airflow_ft.backends.local import job as jobs
from airflow_ft.backends.local.job import LocalJob


def test_a_string_is_split_after_its_templates_are_rendered(tmp_path: Path) -> None:
    """A template may hold blanks."""
    job = LocalJob(command="python train.py --date '{{ ds }}' {{ x }}", root=str(tmp_path))
    rendered = job.rendered(lambda text: str(text).replace("{{ ds }}", "1 2").replace("{{ x }}", "y"))
    assert rendered.argv == ("python", "train.py", "--date", "1 2", "y")


def test_the_rendered_view_never_shows_values() -> None:
    """Names only."""
    assert LocalJob(command="true", env={"TOKEN": "canary"}).serialize()["env"] == {"TOKEN": "***"}


def test_unknown_fields_are_errors() -> None:
    """A person wrote them."""
    with pytest.raises(ValueError, match="nods"):
        LocalJob(command="true", nods=2)  # type: ignore[call-arg]


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Each: field, given, allowed, what to do."""
    (tmp_path / "file").touch()
    job = LocalJob(
        command=["no-such-program-4711", "missing.py"],
        nodes=5,
        env={"A": "x\0y"},
        workdir=str(tmp_path / "nowhere"),
        root=str(tmp_path / "file" / "root"),
    )
    problems = jobs.problems(job)
    assert [problem.split(":")[0] for problem in problems] == ["env", "nodes", "workdir", "command", "root"]
    assert all(" is not allowed" in problem for problem in problems)
    assert "the value of A" in problems[0]
    assert "'no-such-program-4711'" in problems[3]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("'open", "No closing quotation"),
        (["no-such-program-4711"], "no such program"),
        (["./here.sh"], "no such program"),  # exists, not executable
        (["python", "-c", "x.py"], None),
        (["python", "-m", "x.py"], None),
        (["python", "here.py", "missing.py"], None),
        (["python", "missing.py"], "missing.py"),
        (["torchrun", "--nproc-per-node", "2", "missing.py", "a"], "missing.py"),
        (["torchrun", "--nproc-per-node", "2", "here.py", "--config", "missing.py"], None),
        (["torchrun", "-m", "package.train"], None),
        (["sh", "missing.py"], None),  # not ours to know
    ],
)
def test_commands_that_can_not_work_are_refused(tmp_path: Path, command: list[str] | str, wrong: str | None) -> None:
    """And no other ones."""
    for name in ("here.py", "here.sh"):
        (tmp_path / name).touch(mode=0o644)
    found = jobs.problems(LocalJob(command=command, workdir=str(tmp_path), root=str(tmp_path)))
    assert len(found) == (wrong is not None)
    assert wrong is None or wrong in found[0]


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written."""
    monkeypatch.setattr(jobs, "MIN_FREE_BYTES", 2**62)
    assert "MB are free there" in jobs.problems(LocalJob(command="true", root=str(tmp_path)))[0]


def test_the_command_gets_nothing_of_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its settings and connections nor its own place in another job; this interpreter comes first."""
    for name in ("AIRFLOW__CORE__FERNET_KEY", "_AIRFLOW_X", "AIRFLOW_CONN_DB", "FT_JOB", "RANK", "PET_NNODES"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("LANG", "C.UTF-8")
    env = LocalJob(command="true", env={"PET_NPROC_PER_NODE": "4", "MINE": "1"}).environment()
    assert "canary" not in env.values()
    assert (env["LANG"], env["MINE"], env["PET_NPROC_PER_NODE"]) == ("C.UTF-8", "1", "4")
    assert env["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)


def test_the_root_comes_from_job_environment_or_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order."""
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("AIRFLOW_FT_LOCAL_ROOT", raising=False)
    assert jobs.resolve_root() == "/home/somebody/.airflow_ft/local"
    monkeypatch.setenv("AIRFLOW_FT_LOCAL_ROOT", "/data")
    assert jobs.resolve_root() == "/data"
    assert jobs.resolve_root("~/x") == "/home/somebody/x"


def test_the_digest_is_the_jobs(tmp_path: Path) -> None:
    """Equal jobs, equal digests."""
    one, two = (
        LocalJob(command=["a", "b"], env={"A": "1", "B": "2"}),
        LocalJob(command=["a", "b"], env={"B": "2", "A": "1"}),
    )
    assert one.digest() == two.digest() != LocalJob(command=["a", "c"]).digest()
