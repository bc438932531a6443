"""The command line: ``run``, ``order``, ``stacks``, ``vitals``, ``show``.

This is the agent's only interface to the outside besides its folder: backends put it in front of the training command
(`run`), call it on the node by pods/exec or srun (the others), and read the exit code and the one line of JSON. An
option of `run` that this version doesn't know is reported and ignored: a newer sender must not keep a training from
starting. Heavy modules are imported when their command is used, since an order has to be quick.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

ORDER_CODES = {"accepted": 0, "already": 3, "refused": 4}


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    cut = words.index("--") if "--" in words else len(words)
    options, unknown = _parser().parse_known_args(words[:cut])
    if options.verb == "preflight":
        from . import preflight

        return preflight.main_of_command(options.config, os.path.abspath(options.dir) if options.dir else None)
    if options.verb == "torch":
        from . import preflight_torch

        return preflight_torch.main(json.loads(options.config))
    if options.verb == "run":
        return _run(options, words[cut + 1 :], unknown)
    if unknown or words[cut:]:
        sys.stderr.write("ft-agent: unknown arguments: %s. See --help\n" % " ".join(unknown + words[cut:]))
        return 2
    return {"order": _order, "stacks": _stacks, "vitals": _vitals, "show": _show}[options.verb](options)


def _run(options: argparse.Namespace, words: list[str], unknown: list[str]) -> int:
    if not words:
        sys.stderr.write("ft-agent: command: none given. Write it after `--`: run --dir DIR -- torchrun train.py\n")
        return 2
    try:
        from . import detach, supervisor
    except ImportError as error:  # a Python without a part of its library must not keep training from starting
        sys.stderr.write("ft-agent: can't work here: %s\n" % error)
        sys.stderr.flush()
        if options.detach or (options.unless_exists and os.path.lexists(options.unless_exists)):
            return 1
        os.execvp(words[0], words)
    if unknown:
        sys.stderr.write("ft-agent: options that this version doesn't know are ignored: %s\n" % " ".join(unknown))
    directory = os.path.abspath(options.dir)
    caller = detach.Caller()
    if options.detach:
        output = os.path.abspath(options.output) if options.output else os.path.join(directory, "output.log")
        caller = detach.detach(output)
    wanted = supervisor.Options(
        directory=directory,
        command=words,
        attempt=options.attempt,
        incarnation=options.incarnation,
        hold_seconds=options.hold,
        grace_seconds=options.grace,
        nonce=options.nonce,
        once=options.once,
        preflight=options.preflight,
        unless_exists=os.path.abspath(options.unless_exists) if options.unless_exists else None,
        last_words=options.last_words,
        vitals_seconds=options.vitals,
    )
    return supervisor.run(wanted, caller)


def _order(options: argparse.Namespace) -> int:
    from . import orders

    try:
        note = json.loads(options.note) if options.note else None
        result = orders.give(
            os.path.abspath(options.dir),
            options.action,
            options.generation,
            attempt=options.attempt,
            incarnation=options.incarnation,
            digest=options.digest,
            by=options.by,
            note=note,
        )
    except ValueError as error:
        result = orders.OrderResult("refused", "note: %s is no JSON" % error, options.generation)
    except OSError as error:
        result = orders.OrderResult("refused", "the order can't be written: %s" % error, options.generation)
    print(json.dumps(dict(result._asdict(), action=options.action), separators=(",", ":")))
    return ORDER_CODES[result.result]


def _stacks(options: argparse.Namespace) -> int:
    from . import stacks

    look = stacks.peek if options.peek else stacks.dump
    print(json.dumps(look(os.path.abspath(options.dir), by_signal=not options.no_signal), separators=(",", ":")))
    return 0


def _vitals(options: argparse.Namespace) -> int:
    from . import vitals

    print(json.dumps(vitals.read(os.path.abspath(options.dir)), separators=(",", ":")))
    return 0


def _show(options: argparse.Namespace) -> int:
    from . import orders, processes, state

    directory = os.path.abspath(options.dir)
    found = state.read_state(directory)
    shown = {
        "state": found,
        "lives": bool(found and state.agent_lives(found)),
        "command_lives": bool(found and processes.is_alive(found.get("child"), found.get("child_start"))),
        "report": state.read_report(directory),
        "notes": orders.notes(directory),
        "oom_kills": processes.oom_kills(),
    }
    print(json.dumps(shown, separators=(",", ":")))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ft-agent", description="Beside the training command, on every node.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="run|order|stacks|vitals|show")
    run = verbs.add_parser("run", allow_abbrev=False, help="start and supervise the command after `--`")
    run.add_argument("--dir", required=True, help="folder for state, orders and report; one agent at a time")
    run.add_argument("--attempt", default="attempt", help="name of the attempt; part of the rendezvous id")
    run.add_argument("--incarnation", help="which start of the container or allocation this is")
    run.add_argument("--hold", type=float, default=120.0, help="seconds to keep the node after an abnormal end (120)")
    run.add_argument("--grace", type=float, default=60.0, help="seconds from TERM to the kill of the tree (60)")
    run.add_argument("--nonce", default="-", help="word that marks the agent's lines on stderr")
    run.add_argument("--unless-exists", help="start nothing (exit 76) once this path exists")
    run.add_argument("--last-words", help="file that gets the report at the end (a container's termination message)")
    run.add_argument(
        "--vitals", type=float, default=15.0, help="seconds between two lines on what ranks do; 0: none (15)"
    )
    run.add_argument("--once", action="store_true", help="start nothing (exit 75) if this incarnation began before")
    run.add_argument("--detach", action="store_true", help="become a daemon; return when it holds its lock")
    run.add_argument("--preflight", help="JSON: look at this node first; see preflight.py")
    run.add_argument("--output", help="file for stdout and stderr of the daemon (DIR/output.log)")
    order = verbs.add_parser("order", allow_abbrev=False, help="give a numbered order to the agent of a folder")
    order.add_argument("action", choices=("restart", "stacks", "release"))
    order.add_argument("--dir", required=True)
    order.add_argument("--generation", type=int, required=True, help="number of the order: the generation it leads to")
    order.add_argument("--attempt")
    order.add_argument("--incarnation")
    order.add_argument("--digest", help="digest of the decision; another one under the same number is refused")
    order.add_argument("--by", default="", help="who gives it")
    order.add_argument("--note", help="JSON that the agent keeps and echoes")
    stacks = verbs.add_parser("stacks", allow_abbrev=False, help="dump the stacks of all Python processes of the tree")
    stacks.add_argument("--dir", required=True)
    stacks.add_argument("--peek", action="store_true", help="only what is on a CPU right now; disturbs nothing")
    stacks.add_argument("--no-signal", action="store_true", help="py-spy or nothing: for a run that isn't to be killed")
    vitals = verbs.add_parser("vitals", allow_abbrev=False, help="print what the ranks on this node do right now")
    vitals.add_argument("--dir", required=True)
    show = verbs.add_parser("show", allow_abbrev=False, help="print the agent's state and the orders it was given")
    show.add_argument("--dir", required=True)
    preflight = verbs.add_parser("preflight", allow_abbrev=False, help="look at this node before training")
    preflight.add_argument("--dir", help="folder for preflight.json")
    preflight.add_argument("--config", default="{}", help="JSON, or @file; see preflight.py")
    torch = verbs.add_parser("torch", allow_abbrev=False, help="a part of preflight: what only torch can tell")
    torch.add_argument("--config", required=True, help="JSON; see preflight_torch.py")
    return parser
