"""The supervisor: starts the command, reaps it, holds the node after an abnormal end, obeys orders.

Fed by signals, by the exit of the command, and by `orders/`; feeds `state.json` (`state`), the lines on stderr
(`messages`) and `report.json`. One thread that sleeps in ``sigtimedwait`` with all signals blocked: no handlers, no
races, and it works as PID 1. The phases:

=========  =========================================================================================================
starting   the state is written, nothing runs
running    the command runs
held       the command ended abnormally, its tree is killed, the node is kept until an order or the end of the hold
stopping   no more is started unless an order says so: after TERM, at the end of a hold, while a restart kills the tree
ended      the last word
=========  =========================================================================================================

No hold: code 0; after TERM (torchrun ends with 1 then although every rank saved, so `term` says it); 126 and 127 (the
command can't start). **The agent that fails itself must never take training down**: before the fork it becomes the
command (`run`), after it it waits for the command plainly (`_wait_plainly`).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any, NamedTuple

from . import command, gate, messages, orders, processes, state
from .children import ChildWatch
from .detach import Caller
from .helpers import DumpHelper, VitalsHelper

POLL_SECONDS = 0.1
# While held nothing competes for the CPU, and every moment is a moment without training.
HELD_POLL_SECONDS = 0.02
# The last lines may wait this long for a stalled reader before the agent ends without them.
LAST_WORDS_SECONDS = 1.0
CANT_START = (126, 127)
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Slurm's --signal and its users (submitit, Lightning) talk to the training with these; their default would end us.
_PASS_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


class Options(NamedTuple):
    """What `run` was asked for."""

    directory: str
    command: list[str]
    attempt: str
    incarnation: str | None = None
    hold_seconds: float = 120.0
    grace_seconds: float = 60.0
    nonce: str = "-"
    unless_exists: str | None = None
    once: bool = False
    last_words: str | None = None
    vitals_seconds: float = 0.0
    preflight: str | None = None


def run(options: Options, caller: Caller) -> int:
    """Supervise the command until its end; returns the exit code for this process."""
    supervisor = Supervisor(options)
    # The border that keeps the promise: whatever fails in us, the training runs.
    try:
        supervisor.prepare()
        caller.tell(0)
        supervisor.preflight()
        supervisor.spawn()
    except state.RefusedError as refusal:
        caller.tell(refusal.code, str(refusal))
        return supervisor.refuse(refusal)
    except Exception as error:
        if supervisor.child is None:
            return _without_agent(options, supervisor, caller, error)
        supervisor.degrade(error)
        return supervisor.finish()
    try:
        supervisor.supervise()
    except Exception as error:
        supervisor.degrade(error)
    return supervisor.finish()


def _without_agent(options: Options, supervisor: Supervisor, caller: Caller, error: Exception) -> int:
    """The agent can't work here: become the command. But a caller that still waits is told, and nothing is started."""
    why = "the agent can't work: %s: %s" % (type(error).__name__, error)
    if caller.waits:
        caller.tell(1, why)
        return 1
    with suppress(OSError, ValueError):
        os.write(2, ("ft-agent: %s; running the command without it\n" % why).encode("utf-8", "backslashreplace"))
    if options.unless_exists and os.path.lexists(options.unless_exists):
        return state.EXIT_CANCELLED
    if supervisor.lock is not None:
        os.set_inheritable(supervisor.lock, True)  # the folder stays taken for as long as the command runs
    command.become(options.command, dict(os.environ))


class Supervisor:
    """One command, its generations, and the folder that tells about them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._site: str | None = None
        self._helper: DumpHelper | None = None
        self._vitals: VitalsHelper | None = None
        self._children = ChildWatch()
        self._deadline: float | None = None
        self._exit: int | None = None
        self._reaped_all = False
        self._exit_noted = False
        self._out: messages.Messages | None = None
        self._state: state.StateFile | None = None
        self.lock: int | None = None
        self.child: int | None = None

    # --- start ---

    def prepare(self) -> None:
        """Take the folder and write the state, before anything is started."""
        options = self._options
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignored it would cost us every exit code
        # A signal that we were started to ignore (nohup) would reach sigtimedwait all the same once it is blocked.
        heard = [number for number in _STOP + _PASS_ON if signal.getsignal(number) != signal.SIG_IGN]
        self._signals = {signal.SIGCHLD, signal.SIGTERM, *heard}
        for folder in (options.directory, os.path.join(options.directory, "orders")):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self.lock = state.lock(options.directory)
        old = state.read_state(options.directory) or {}
        if options.once and old and old.get("incarnation") == options.incarnation:
            # A launcher that slept through the whole run: the folder's lock is free again, but there is nothing to do.
            raise state.RefusedError(state.EXIT_IN_USE, "this incarnation began before; nothing was started")
        # The folder may be old (container restarted, job requeued): its orders are never replayed.
        generation = max(old.get("generation", 0), orders.highest(options.directory), 0)
        self._helper = DumpHelper(options.directory, self.lock)
        self._vitals = VitalsHelper(options.directory, self.lock, options.vitals_seconds)
        self._refuse_if_cancelled()
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        processes.become_subreaper()
        self._out = messages.Messages(options.nonce)
        fields = state.fresh(options.attempt, options.incarnation, generation, old)
        self._state = state.StateFile(options.directory, fields)
        state.forget_report(options.directory)
        self._state.change()
        self._site = command.install_site(options.directory)

    def preflight(self) -> None:
        """Look at the node first, if that is wanted (`gate`). A gate that is broken itself keeps nobody out."""
        odd = gate.check(self._options.directory, self._options.preflight, self._now["generation"])
        if odd:
            self._say("preflight", why=odd)

    def spawn(self) -> None:
        """Start the command for the current generation."""
        options = self._options
        command.clear_stack_files(options.directory)
        env = command.environment(options.directory, options.attempt, self._now["generation"], self._site)
        self._refuse_if_cancelled()
        self._children.forget()
        self._exit_noted = False
        self.child = command.spawn(options.command, env)
        self._change(
            phase="running",
            child=self.child,
            child_start=processes.start_ticks(self.child),
            code=None,
            hold_until=None,
            spawned_at=time.time(),
            exited_at=None,
        )
        self._say("start", pid=self.child, attempt=options.attempt, incarnation=options.incarnation)

    def refuse(self, refusal: state.RefusedError) -> int:
        """The command must not run (again): say so and end. Without the lock the folder is somebody else's."""
        with suppress(OSError, ValueError):
            os.write(2, ("ft-agent: %s\n" % refusal).encode("utf-8", "backslashreplace"))
        if self._state is not None:
            self._exit = refusal.code
            if refusal.code == gate.EXIT_FAILED:  # the node's own end, with a code that everybody sees
                found = gate.failed_items(self._options.directory)
                self._change(code=refusal.code, exited_at=time.time(), preflight=found)
            return self.finish()
        return refusal.code

    # --- the loop ---

    def supervise(self) -> None:
        """Run until the end is due. The last look at the orders comes after "stopping" is written: see `orders`."""
        while True:
            self._watch()
            self._change(phase="stopping", hold_until=None)
            over = self._now["term"] or self._now["unkillable"] or self._exit is not None
            order = None if over else self._next_order()
            if order is None or not self._obey(order):
                return

    def _watch(self) -> None:
        """Returns when there is nothing more to wait for."""
        while True:
            pause = HELD_POLL_SECONDS if self._now["phase"] == "held" else POLL_SECONDS
            signalled = signal.sigtimedwait(self._signals, pause)
            if signalled and signalled.si_signo != signal.SIGCHLD:
                self._on_signal(signalled.si_signo)
            self._reap()
            self._keep_house()
            if self._now["code"] is not None and not self._exit_noted:
                self._note_exit()
            if self._now["term"]:
                if self._now["code"] is not None or time.monotonic() > (self._deadline or 0.0):
                    return
                continue
            if self._now["phase"] == "running" and self._now["code"] is not None and not self._hold():
                return
            order = self._next_order()
            if order and not self._obey(order):
                return
            if self._now["phase"] == "held" and time.monotonic() > (self._deadline or 0.0):
                return

    def _on_signal(self, number: int) -> None:
        """Pass the signal on; after one that means "stop" the command has `grace` seconds, and nothing is held."""
        if self._now["code"] is None and self.child:  # not reaped yet: the pid is the command's
            with suppress(OSError):
                os.kill(self.child, number)
        if number in _STOP and not self._now["term"]:
            self._deadline = time.monotonic() + self._options.grace_seconds
            self._change(phase="stopping", term=True, hold_until=None)
            self._say("stopping", signal=signal.Signals(number).name, grace=self._options.grace_seconds)

    def _note_exit(self) -> None:
        """Nothing of a dead incarnation may hold a GPU; and with its tree dead, all its output is before our line."""
        self._exit_noted = True
        self._kill_all()
        ran = (self._now["exited_at"] or 0.0) - (self._now["spawned_at"] or 0.0)
        self._say("exit", code=self._now["code"], seconds=round(ran, 3))

    def _hold(self) -> bool:
        """The command ended by itself: keep the node for a decision; False if there is nothing to decide or to keep."""
        hold = self._options.hold_seconds
        if self._now["code"] in (0, *CANT_START) or hold <= 0 or self._now["unkillable"]:
            return False
        self._deadline = time.monotonic() + hold
        self._change(phase="held", hold_until=time.time() + hold)
        self._say("held", hold=hold)
        return True

    def _obey(self, order: dict[str, Any]) -> bool:
        """Do what the order says; False if that is to end."""
        number = order["generation"]
        self._change(order=number, decision=order.get("note"), digest=order.get("digest"))
        self._say(order["action"], by=order.get("by"), order=number, note=order.get("note"), digest=order.get("digest"))
        if order["action"] != "restart":
            return False
        self._change(phase="stopping", hold_until=None)
        self._kill_all()
        told_to_stop = self._signals.intersection(_STOP, signal.sigpending())
        if self._now["unkillable"] or told_to_stop:
            self._change(term=bool(told_to_stop))
            return False
        self._change(generation=number)
        try:
            self.spawn()
        except state.RefusedError as refusal:
            self._exit = refusal.code
            return False
        return True

    def _next_order(self) -> dict[str, Any] | None:
        order = orders.pending(self._options.directory, self._now["order"])
        return order if order and orders.fits(order, self._now) else None

    def _keep_house(self) -> None:
        """What is due at every turn and can wait if it fails: lines, state, early signs, stack dumps."""
        if self._out:
            self._out.flush()
        if self._state:
            self._state.retry()
        if self.child and self._now["code"] is None:
            for pid in self._children.look(self.child):
                exits = self._now["child_exits"] + [{"pid": pid, "at": time.time()}]
                self._change(child_exits=exits[-16:])
                self._say("child_exit", pid=pid)
        dump = self._helper.look(self._now) if self._helper else None
        if dump:
            self._say("stacks", number=dump["generation"], by=dump.get("by"))
        seen = self._vitals.look(self._now["phase"] == "running") if self._vitals else None
        if seen:
            self._say("vitals", ranks=seen.get("ranks"))

    # --- processes ---

    def _reap(self) -> None:
        """Collect everything that ended, orphans too; note the command's code."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._reaped_all = True
                return
            self._reaped_all = False
            if pid == 0:
                return
            if pid == self.child and self._now["code"] is None:
                self._change(code=_exit_value(status), exited_at=time.time())
            elif self._helper and self._vitals:
                self._helper.reaped(pid)
                self._vitals.reaped(pid)

    def _kill_all(self) -> None:
        """End the whole tree. Orphans stay ours (subreaper), so "no child left to wait for" means that it is empty."""
        end = time.monotonic() + processes.KILL_SECONDS
        self._reap()
        while not self._reaped_all and time.monotonic() < end:
            for pid in processes.descendants(os.getpid()) or [self.child or 0]:
                if pid:
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, 0.02)
            self._reap()
        left = [] if self._reaped_all else processes.descendants(os.getpid())
        self._change(unkillable=left)
        if left:
            self._say("unkillable", pids=left)

    # --- the end ---

    def degrade(self, error: Exception) -> None:
        """The supervision failed: say it once, then wait for the command as plainly as can be."""
        with suppress(Exception):
            self._say("agent_error", why="%s: %s" % (type(error).__name__, error))
        self._wait_plainly()

    def _wait_plainly(self) -> None:
        """Nothing but waitpid and the forwarding of signals; no file is needed for it."""
        kill_at = float("inf")
        while self.child and self._now["code"] is None:
            signalled = signal.sigtimedwait(self._signals, POLL_SECONDS)
            number = signalled.si_signo if signalled else 0
            if number in _STOP:
                self._now["term"] = True
                kill_at = min(kill_at, time.monotonic() + self._options.grace_seconds)
            number = signal.SIGKILL if time.monotonic() > kill_at else number
            try:
                if number and number != signal.SIGCHLD:
                    os.kill(self.child, number)
                pid, status = os.waitpid(self.child, os.WNOHANG)
            except OSError:  # reaped before its code was noted
                return
            if pid:
                self._now["code"] = _exit_value(status)

    def finish(self) -> int:
        """Kill what is left, leave the end marker, say the last words; returns the exit code."""
        # The command is over: an error in here must not change its code.
        with suppress(Exception):
            self._kill_all()
        code = self._exit_code()
        with suppress(Exception):
            state.write_report(self._options.directory, self._now, code, self._options.last_words)
            self._change(phase="ended", hold_until=None)
            self._say("end", code=self._now["code"], term=self._now["term"], exit=code)
            until = time.monotonic() + LAST_WORDS_SECONDS
            while self._out and not self._out.flush() and time.monotonic() < until:
                time.sleep(0.02)
        return code

    def _exit_code(self) -> int:
        code = self._now["code"]
        if self._exit is not None:
            return self._exit
        if code is None:  # it could not even be killed
            return 128 + signal.SIGKILL
        return int(code) if code >= 0 else 128 - int(code)

    # --- small things ---

    @property
    def _now(self) -> dict[str, Any]:
        return self._state.fields if self._state else {}

    def _change(self, **fields: Any) -> None:
        if self._state:
            self._state.change(**fields)

    def _say(self, event: str, **fields: Any) -> None:
        if self._out:
            self._out.say(event, generation=self._now.get("generation"), **fields)

    def _refuse_if_cancelled(self) -> None:
        path = self._options.unless_exists
        if path and os.path.lexists(path):
            raise state.RefusedError(state.EXIT_CANCELLED, "%s exists: cancelled, nothing was started" % path)


def _exit_value(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
