"""How a bisect is run: what one test is, and what it may cost."""

from __future__ import annotations

from airflow_ft.core.settings import CheckedSettings, Seconds, Whole, setting


class BisectSettings(CheckedSettings):
    """How the nodes are bisected when nobody knows which one is bad.

    :param command: your own reproducer (some steps of the real training, say): it runs on a group of nodes, and code 0
        is a pass. Left out: the communication check and the other items of the preflight's standard set.
    :param seconds: the time budget for all tests together.
    :param test_seconds: how long one test may take; one that is still running then has failed (it hangs).
    :param max_tests: the most tests; left out: as many as the planner may need.
    :param detection_probability: how often the fault is expected to show in a test; left out: the tests tell.
    :param group_min: the fewest nodes that a test can run on.
    """

    command: tuple[str, ...] = setting((), allowed="Give a list of arguments, or leave it out.")
    # A quarter of an hour for the whole search: longer costs more than one more blind restart. A gut feeling.
    seconds: Seconds = setting(900.0, gt=0, le=86_400, allowed="Give seconds from above 0 to 86400.")
    test_seconds: Seconds = setting(120.0, gt=0, le=86_400, allowed="Give seconds from above 0 to 86400.")
    max_tests: Whole | None = setting(None, ge=1, le=10_000, allowed="Give a number from 1 to 10000, or leave it out.")
    detection_probability: Seconds | None = setting(None, gt=0, le=1, allowed="Give a number above 0 up to 1.")
    group_min: Whole = setting(2, ge=1, le=1024, allowed="Give a number from 1 to 1024.")
