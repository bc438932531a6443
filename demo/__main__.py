"""``make demo``: a real Airflow keeps a real distributed training alive through a killed rank, a lost node and a hang.

Exit status 0 only if training finished and every recovery was verified from the training's own log.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from airflow_ft.backends.local import inventory
from demo import injection, results, screen
from demo.airflow_client import AirflowApiError, AirflowClient
from demo.stack import AirflowStack
from demo.training_log import TrainingLog

ROOT = Path(__file__).resolve().parent.parent
DAG_ID, TASK_ID = "pretrain_local", "pretrain"
STEPS, CHECKPOINT_EVERY = 150, 15
FAULT_STEPS = (25, 60, 95)
LIMIT_SECONDS = 900.0
POLL_SECONDS = 0.1
CHAIN_EVERY_SECONDS = 2.0


def main() -> int:
    """Run the demo. Returns the exit status."""
    args = arguments()
    console = Console(width=None if sys.stdout.isatty() else 120)
    home = ROOT / ".demo"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    local_root = home / "training"
    began = time.monotonic()
    environment = {
        "AIRFLOW_FT_LOCAL_ROOT": str(local_root),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",  # examples with a schedule would train beside the demo
    }
    stack = AirflowStack(home / "airflow", ROOT / "dags", extra_env=environment)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    try:
        with stack:
            start(stack, console)
            client = stack.client()
            run_id = begin(client, home / "checkpoints")
            log, faults, chain = watch(stack, client, run_id, local_root, console)
            made = results.results(faults, log, chain)
            succeeded = client.wait_for_run(DAG_ID, run_id, 60) == "success" if log.finished else False
            report(console, args, made, log, succeeded, time.monotonic() - began)
            if args.keep:
                keep(stack, console)
    except KeyboardInterrupt:
        console.print("[yellow]Stopping; nothing stays behind.[/]")
        return 130
    finally:
        stop_training(local_root)
    return 0 if succeeded and len(made) == len(injection.FAULTS) and all(one.verified for one in made) else 1


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave Airflow up afterwards, until Ctrl-C")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there")
    return parser.parse_args()


@contextmanager
def spinner(console: Console, text: str) -> Iterator[None]:
    """Show that a step without a known length goes on."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=console.is_terminal) as progress:
        progress.add_task(text, total=None)
        began = time.monotonic()
        yield
    console.print(f"[green]✓[/] {text} [dim]{time.monotonic() - began:.0f} s[/]")


def start(stack: AirflowStack, console: Console) -> None:
    """Start Airflow, with something to see meanwhile."""
    with spinner(console, "Preparing Airflow's database"):
        stack.prepare()
    with spinner(console, "Starting api-server, scheduler, dag-processor and triggerer"):
        stack.start()
        stack.wait_healthy()


def begin(client: AirflowClient, out: Path) -> str:
    """Trigger the DAG run. Returns its id."""
    client.wait_for_dag(DAG_ID)
    client.unpause(DAG_ID)
    conf = {"steps": STEPS, "checkpoint_every": CHECKPOINT_EVERY, "out": str(out)}
    return client.trigger(DAG_ID, conf=conf)


def watch(
    stack: AirflowStack, client: AirflowClient, run_id: str, local_root: Path, console: Console
) -> tuple[TrainingLog, list[injection.Injected], dict[str, Any]]:
    """Follow the training to its end, and inject the faults on the way."""
    log = TrainingLog(local_root)
    faults: list[injection.Injected] = []
    view = screen.Screen(console, client.base_url, "admin", stack.password())
    chain: dict[str, Any] | None = None
    asked, verified, starts = 0.0, 0, 0
    deadline = time.monotonic() + LIMIT_SECONDS
    with Live(view.update(log, None), console=console, refresh_per_second=4, transient=True) as live:
        while time.monotonic() < deadline:
            log.read()
            if len(log.starts) > starts:
                starts = len(log.starts)
                view.event(f"training starts from checkpoint step {log.starts[-1].loaded}")
            if verified < len(faults) and injection.recovered(faults[-1], log):
                verified = len(faults)
                view.event(f"recovered from the {faults[-1].what}: past step {faults[-1].step}", "green")
            due = len(faults) < len(FAULT_STEPS) and log.step >= FAULT_STEPS[len(faults)] and verified == len(faults)
            if due and log.saved and starts:
                faults.append(injection.inject(len(faults), local_root, log))
                view.event(f"injected: {faults[-1].detail}, at step {faults[-1].step}", "bold red")
            if time.monotonic() - asked > CHAIN_EVERY_SECONDS:
                asked = time.monotonic()
                chain = read_chain(client, run_id) or chain
                if chain is not None and chain["task_state"] in ("success", "failed"):
                    break
            live.update(view.update(log, chain))
            time.sleep(POLL_SECONDS)
    log.read()
    return log, faults, chain or {"attempts": [], "rows": [], "headline": "no chain"}


def read_chain(client: AirflowClient, run_id: str) -> dict[str, Any] | None:
    """Read the retry chain from the plugin's page; ``None`` while there is none."""
    try:
        return client.retry_chain(DAG_ID, run_id, TASK_ID)
    except (AirflowApiError, httpx.HTTPError):
        return None


def report(
    console: Console,
    args: argparse.Namespace,
    made: list[results.Result],
    log: TrainingLog,
    succeeded: bool,
    seconds: float,
) -> None:
    """Print the summary, and write it as JSON if wanted."""
    console.print(screen.summary_table(made))
    for one in made:
        console.print(f"[dim]{one.injected}: {one.reason}[/]")
    word = "finished" if succeeded else "did NOT finish"
    console.print(f"Training {word} at step {log.step} of {log.total}, in {seconds:.0f} s in all.")
    if args.json:
        args.json.write_text(json.dumps(results.as_json(made, succeeded, log.step, seconds), indent=1) + "\n")


def keep(stack: AirflowStack, console: Console) -> None:
    """Leave Airflow up until Ctrl-C."""
    console.print(
        f"Airflow stays up: {stack.client().base_url}  user admin  password {stack.password()}  (Ctrl-C ends it)"
    )
    while True:
        time.sleep(1)


def stop_training(local_root: Path) -> None:
    """Leave no training behind, however the demo ended."""
    from airflow_ft.cli.standalone import main as airflow_ft

    for job in inventory.list_jobs(str(local_root)):
        if not job.closed:
            airflow_ft(["cancel", "--root", str(local_root), job.name])


if __name__ == "__main__":
    sys.exit(main())
