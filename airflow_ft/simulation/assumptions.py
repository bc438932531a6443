"""What the model takes for given. Each number says where it comes from; all can be changed on the command line."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from airflow_ft.core.settings import CheckedSettings, Seconds, Whole, setting

_SECONDS = "Give seconds, 0 or more."
_SHARE = "Give a share from 0 to 1."


class Assumptions(CheckedSettings):
    """The cluster, the training and the people.

    :param nodes: how many the job takes, all of them at once.
    :param spares: further nodes of the pool that the job may be moved to.
    :param gpus_per_node: for GPU-hours.
    :param days: how long the training runs.
    :param checkpoint_seconds: between two checkpoints; what is newer is lost with a fault.
    :param checkpoint_cost_seconds: how long training stands still for one.
    :param step_seconds: of one training step; the hang detector's threshold follows from it.
    :param crash_seconds: from a rank's death to the decision (settling, logs of all ranks, classification).
    :param in_place_seconds: from the decision to the first step, where the processes alone start again.
    :param resubmit_seconds: the same for a new job: queue, containers, start-up, loading.
    :param early_death_seconds: how long a start on a bad node works before it dies.
    :param cordon_seconds: until the platform's own people take a node out of service that only training noticed.
    :param watchdog_share: hangs that the framework's watchdog ends by itself. The others stand until somebody looks.
    :param watchdog_seconds: its time limit.
    :param unwatched_seconds: until a person notices a hang that nothing reports (mean of an exponential distribution).
    :param person_seconds: until a person has answered a page and started training again (mean, exponential).
    :param transient_hangs: per 1,000 node-days, of no node's fault: starting again cures them.
    :param transient_crashes: the same for deaths of a process.
    :param blame: how often class and suspect are both right; ``None``: as the classifier's published table says.
    :param agents: whether restarts in place are possible.
    """

    nodes: Whole = setting(128, ge=1, le=100_000, allowed="Give a number from 1 to 100000.")
    # InfiniteHBD's trace has up to 35 of 400 servers faulty at once (9 %): with half as many spares every policy waits.
    spares: Whole = setting(16, ge=0, le=100_000, allowed="Give a number from 0 to 100000.")
    gpus_per_node: Whole = setting(8, ge=1, le=128, allowed="Give a number from 1 to 128.")
    days: Seconds = setting(30.0, gt=0, le=3650, allowed="Give days above 0.")
    checkpoint_seconds: Seconds = setting(1800.0, gt=0, allowed="Give seconds above 0.")
    checkpoint_cost_seconds: Seconds = setting(0.0, ge=0, allowed=_SECONDS)  # asynchronous checkpoints
    step_seconds: Seconds = setting(10.0, gt=0, allowed="Give seconds above 0.")
    crash_seconds: Seconds = setting(20.0, ge=0, allowed=_SECONDS)  # settle 2 s, then logs of all nodes
    in_place_seconds: Seconds = setting(90.0, ge=0, allowed=_SECONDS)  # small models take 10 to 30 s, large ones load
    resubmit_seconds: Seconds = setting(420.0, ge=0, allowed=_SECONDS)  # a gut feeling for 128 nodes, image cached
    early_death_seconds: Seconds = setting(60.0, ge=0, allowed=_SECONDS)
    cordon_seconds: Seconds = setting(3600.0, ge=0, allowed=_SECONDS)
    # torch ends a collective after 600 s; waits outside of collectives (data, a lock, a rank that left) it never sees.
    watchdog_share: Seconds = setting(0.5, ge=0, le=1, allowed=_SHARE)
    watchdog_seconds: Seconds = setting(600.0, ge=0, allowed=_SECONDS)
    unwatched_seconds: Seconds = setting(7200.0, ge=0, allowed=_SECONDS)
    person_seconds: Seconds = setting(3600.0, ge=0, allowed=_SECONDS)
    # "The Llama 3 Herd of Models", table 5: 42 interruptions of network and watchdog and 54 of software, in 54 days on
    # 2,048 nodes, are 0.38 and 0.49 per 1,000 node-days.
    transient_hangs: Seconds = setting(0.4, ge=0, allowed="Give a rate, 0 or more.")
    transient_crashes: Seconds = setting(0.5, ge=0, allowed="Give a rate, 0 or more.")
    blame: Seconds | Literal["table"] = setting(0.9, allowed="Give a share from 0 to 1, or table.")
    agents: bool = True

    @field_validator("blame", mode="before")
    @classmethod
    def _a_share(cls, blame: object) -> object:
        share = isinstance(blame, (int, float)) and not isinstance(blame, bool) and 0 <= blame <= 1
        if not share and blame != "table":
            raise ValueError(f"{blame!r:.40} is not allowed. Give a share from 0 to 1, or table.")
        return blame
