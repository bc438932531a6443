"""The commands about policies: what they print, and that both command lines know the same arguments."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_ft.cli.definition import SIMULATION, get_cli_commands
from airflow_ft.cli.simulate import own_arguments
from airflow_ft.cli.standalone import main
from airflow_ft.core.policy import PRESETS, FaultTolerancePolicy
from airflow_ft.core.settings import SettingsError
from airflow_ft.simulation.assumptions import Assumptions


def test_airflows_simulate_has_the_arguments_and_defaults_of_ours() -> None:
    ours, airflows = argparse.ArgumentParser(), argparse.ArgumentParser()
    for flags, options in own_arguments():
        ours.add_argument(*flags, **options)
    ours.add_argument("--json", action="store_true")
    for one in SIMULATION:
        one.add_to_parser(airflows)
    given = ["--trace", "x", "--policy", "a", "--policy", "b", "--nodes", "4"]
    assert vars(ours.parse_args(given)) == vars(airflows.parse_args(given))


def test_the_group_has_every_command() -> None:
    (group,) = get_cli_commands()
    names = {one.name for one in group.subcommands}
    assert {"chain", "explain", "plan", "replay", "simulate", "doctor", "reap"} <= names


@pytest.mark.parametrize("preset", PRESETS)
def test_a_shown_policy_is_a_policy_file(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for extra in ([], ["--all"]):
        assert main(["policy", "show", preset, *extra]) == 0
        file = tmp_path / "shown.yaml"
        file.write_text(capsys.readouterr().out)
        assert FaultTolerancePolicy.from_yaml(file) == getattr(FaultTolerancePolicy, preset)()


def test_check_says_every_mistake_of_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("max_restarts: 200\nmoode: full\n")
    (tmp_path / "b.yaml").write_text("signature_ladders: {nccl.remote_eror: [FAIL]}\n")
    (tmp_path / "c.yaml").write_text("preset: multi_node\n")
    assert main(["policy", "check", *(str(tmp_path / f"{name}.yaml") for name in "abc")]) == 2
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 3
    assert "signature_ladders.nccl.remote_eror: there is no such signature. Did you mean " in told.err
    assert "c.yaml: full, 3 restarts, unconditional" in told.out


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Fault tolerance policy"


def test_an_unknown_preset_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "multi_nod"]) == 2
    assert "Did you mean multi_node?" in capsys.readouterr().err


def test_a_share_of_blame_that_is_none_is_one_mistake() -> None:
    """Not one for each kind of value that it could have been."""
    for given in ("foo", 1.5, True):
        with pytest.raises(SettingsError) as refused:
            Assumptions(blame=given)
        assert refused.value.problems == (f"blame: {given!r} is not allowed. Give a share from 0 to 1, or table.",)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """``airflow-ft policy schema | head -1`` leaves no traceback."""
    program = "import sys; from airflow_ft.cli.standalone import main; sys.exit(main(['policy', 'schema']))"
    command = ["sh", "-c", '"$1" -c "$2" | head -1', "sh", sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")
