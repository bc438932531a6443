"""The set-up flow (mission M11): the checklist of docs/policy.md names what exists; its steps show what they say."""

from __future__ import annotations

import argparse
import asyncio
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.agent.preflight_host import Place, checkpoint
from airflow_ft.attempts.ports import Conclusion, TryInfo, WatchOrder
from airflow_ft.attempts.start import Starter
from airflow_ft.attempts.store import ChainStore
from airflow_ft.attempts.watch import Watch
from airflow_ft.cli import policy as policy_command
from airflow_ft.cli.definition import get_cli_commands
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy
from airflow_ft.core.policy_settings import HangSettings
from airflow_ft.diagnosis.signature_files import load_rules
from tests.backends.conformance import LocalSystem
from tests.backends.test_local_hangs import Desk
from tests.backends.test_local_ladder import Values

pytestmark = pytest.mark.row("M11")

PAGE = Path(__file__).parents[2] / "docs" / "policy.md"
# Each step of the flow, in its order, by a word that its line has to have.
FLOW = (
    "save checkpoints",
    "survive a restart",
    "Switch it on",
    "max_restarts",
    "hang.startup_seconds",
    "collective",
    "on_fault: notify",
    "Submit",
)
TRAINING = """
import os, signal, sys
kept, ckpt = sys.argv[1] == "resumes", "checkpoints/last"
step = int(open(ckpt).read()) if kept and os.path.exists(ckpt) else 0
print(f"resumed from checkpoint step {step} ({ckpt})" if step else "no checkpoint, starting from scratch", flush=True)
first = not os.path.exists("killed")
while step < 8:
    step += 1
    print(f"step {step}/8 loss {1 / step:.4f}", flush=True)
    if step % 2 == 0:
        os.makedirs("checkpoints", exist_ok=True)
        open(ckpt, "w").write(str(step))
        print(f"saved checkpoint step {step} ({ckpt})", flush=True)
    if first and step == 5:
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def checklist() -> list[str]:
    """The steps of the page, each as one line."""
    section = PAGE.read_text().split("## Set-up, as a checklist\n")[1].split("\n## ")[0]
    return [" ".join(step.split()) for step in re.split(r"(?m)^\d+\. ", section)[1:]]


def test_the_checklist_has_every_step_of_the_flow_in_its_order() -> None:
    steps = checklist()
    assert len(steps) == len(FLOW)
    assert [word for word, step in zip(FLOW, steps, strict=True) if word not in step] == []


def test_every_setting_and_command_that_the_checklist_names_exists() -> None:
    """A name that is wrong there costs somebody a night."""
    for text in re.findall(r"`([^`]+)`", " ".join(checklist())):
        if text.startswith("airflow ft "):
            parser = argparse.ArgumentParser()
            group = next(one for one in get_cli_commands() if one.name == "ft")
            command = next(one for one in group.subcommands if one.name == text.split()[2])
            for argument in command.args:
                argument.add_to_parser(parser)
            parser.parse_args(text.split()[3:])
        elif text.startswith("airflow-ft "):
            parser = argparse.ArgumentParser()
            policy_command.add_parser(parser.add_subparsers())
            parser.parse_args([*text.split()[1:], "policy.yaml"])
        elif ":" in text:
            name, value = text.split(": ")
            FaultTolerancePolicy.full(**{name: value})
        elif text.startswith("hang."):
            assert text.removeprefix("hang.") in HangSettings.model_fields
        elif re.fullmatch(r"[a-z_]+", text):
            assert text in FaultTolerancePolicy.model_fields or text in ("checkpoint", "checkpoints"), text


def test_a_checkpoint_path_that_can_not_be_written_is_found_before_training(tmp_path: Path) -> None:
    """Step 2, as the preflight asks it on the nodes themselves."""
    assert checkpoint(Place(checkpoints=str(tmp_path), needs={"checkpoint": 0.0})).status == "ok"
    (tmp_path / "file").touch()
    assert checkpoint(Place(checkpoints=str(tmp_path / "file" / "below"))).status == "failed"


def test_a_presets_file_passes_its_check_and_detects_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps 3 to 5: switched on by a preset, the maximum set, hangs for several nodes."""
    file = tmp_path / "policy.yaml"
    file.write_text("preset: multi_node\nmax_restarts: 5\nhang:\n  startup_seconds: 1200\n")
    args = argparse.Namespace(files=[str(file)], signatures=[])
    assert policy_command.run_check(args) == 0, capsys.readouterr().err
    policy = FaultTolerancePolicy.from_yaml(file)
    assert (policy.enabled, policy.max_restarts, policy.detects_hangs) == (True, 5, True)
    file.write_text("preset: multi_node\nmax_restart: 5\n")
    assert policy_command.run_check(args) != 0
    assert "max_restarts" in capsys.readouterr().err


async def trained(local: LocalSystem, how: str) -> Conclusion:
    """Step 7: submit, on this machine; the training is killed once."""
    (local.scratch / "train.py").write_text(TRAINING)
    policy = FaultTolerancePolicy.multi_node(settle_seconds=0.2, grace_seconds=0.2)
    store, desk = ChainStore(Values()), Desk()
    info = TryInfo(dag_id="d", run_id="r", task_id="t", try_number=1, max_tries=99, ti_id="x")
    job = local.job("python", "train.py", how)
    starter = Starter(store, local.backend, job, policy, info, lambda: datetime.now(timezone.utc), desk.say)
    chain, started = await starter.start()
    assert started is not None and started.attempt.ref is not None
    order = WatchOrder(info=info, ref=started.attempt.ref, policy=write_policy(policy), ledger=chain.ledger)
    watch = Watch(order, policy, local.backend, desk, load_rules())  # type: ignore[arg-type]
    return await asyncio.wait_for(watch.watch(), 60)


@pytest.mark.row("S15")
@pytest.mark.parametrize(("how", "state"), [("resumes", "recovered"), ("forgets", "from_scratch")])
def test_killed_once_the_step_goes_on_or_it_is_said_that_it_did_not(how: str, state: str, local: LocalSystem) -> None:
    """Steps 1 and 8: what the checklist asks a person to try is what the chain says of every recovery."""
    conclusion: Any = asyncio.run(trained(local, how))
    (incident,) = conclusion.incidents
    assert incident.decision.action.value == "RESTART_IN_PLACE"
    recovery = conclusion.recovery or incident.recovery
    assert recovery.state == state, recovery
    assert recovery.died_at_step == 5
