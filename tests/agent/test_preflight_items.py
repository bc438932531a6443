"""Preflight items on machines that are made of files: each says ok, failed or skipped, in the line of mission M8."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.agent import preflight, preflight_host, preflight_meet
from airflow_ft.agent.preflight_comm import Check, Pair, Peer, partners
from airflow_ft.agent.preflight_host import Place
from airflow_ft.agent.preflight_result import Result, failed, ok, parse, read, skipped
from airflow_ft.agent.preflight_verdict import bad_nodes, bad_pairs, judge
from airflow_ft.backends.agent_archive import build_agent_archive

pytestmark = [pytest.mark.row("M8"), pytest.mark.row("S3")]
LINE = re.compile(r"^item=.+ status=(ok|failed|skipped) value=.* need=.* advice=.*$")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def ib(root: Path, state: str = "4: ACTIVE", physical: str = "5: LinkUp", rate: str = "400 Gb/sec (4X NDR)") -> Place:
    port = root / "class/infiniband/mlx5_0/ports/1"
    write(port / "state", state + "\n")
    write(port / "phys_state", physical + "\n")
    write(port / "rate", rate + "\n")
    write(port / "counters/symbol_error", "0\n")
    return Place(sys=str(root))


def test_a_line_has_the_words_of_m8_in_order_and_can_be_read_back() -> None:
    result = failed("8.2 GB", "> 32 GB", "Give the node\na larger disk.")._replace(item="disk-size root")
    line = result.line()
    assert line == "item=disk-size root status=failed value=8.2 GB need=> 32 GB advice=Give the node a larger disk."
    assert parse(f"before\n  {line}\nafter") == [result._replace(advice="Give the node a larger disk.")]
    assert read(json.loads(json.dumps(list(result)))) == result
    assert read(["too", "short"]) is None


def test_every_domain_of_volcanos_host_files_has_to_resolve(tmp_path: Path) -> None:
    write(tmp_path / "worker.host", "localhost\n")
    place = Place(host_files=str(tmp_path / "*.host"))
    assert preflight_host.dns(place).status == "ok"
    write(tmp_path / "ps.host", "# comment\njob-ps-0.does-not-exist.invalid\n")
    told = preflight_host.dns(place)
    assert told.status == "failed" and "job-ps-0.does-not-exist.invalid" in told.value
    assert preflight_host.dns(Place(host_files=str(tmp_path / "none/*"))).status == "skipped"


@pytest.mark.parametrize(("which", "gigabytes"), [("root", 32), ("shm", 1), ("cache", 32)])
def test_disk_sizes_have_m8s_thresholds_and_others_can_be_given(tmp_path: Path, which: str, gigabytes: int) -> None:
    place = Place(root=str(tmp_path), shm=str(tmp_path), cache=str(tmp_path))
    assert preflight_host.disk_size(place, which).need == f"> {gigabytes} GB"
    assert preflight_host.disk_size(place._replace(needs={f"disk-size {which}": 1e9}), which).status == "failed"
    assert preflight_host.disk_size(place._replace(needs={f"disk-size {which}": 0}), which).status == "ok"


def test_a_cache_that_is_not_there_is_skipped(tmp_path: Path) -> None:
    assert preflight_host.disk_size(Place(cache=str(tmp_path / "cache")), "cache").status == "skipped"


def test_ulimits_matter_only_with_infiniband(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight_host.ulimit(Place(sys=str(tmp_path))).status == "skipped"
    place = ib(tmp_path)
    need = "max locked memory > 16000, open files > 1000000, stack size > 8000, max user processes > 1000000"
    low = {resource.RLIMIT_MEMLOCK: 16000 * 1024, resource.RLIMIT_NOFILE: 1000000, resource.RLIMIT_STACK: 8192 * 1024}
    monkeypatch.setattr(resource, "getrlimit", lambda number: (low.get(number, -1), -1))
    told = preflight_host.ulimit(place)
    assert (told.status, told.need) == ("failed", need)
    assert told.value == "max locked memory 16000, open files 1000000"
    monkeypatch.setattr(resource, "getrlimit", lambda number: (resource.RLIM_INFINITY, -1))
    assert preflight_host.ulimit(place).status == "ok"


@pytest.mark.parametrize(
    ("state", "physical", "status"),
    [("4: ACTIVE", "5: LinkUp", "ok"), ("1: DOWN", "3: Disabled", "failed"), ("2: INIT", "5: LinkUp", "failed")],
)
def test_an_infiniband_port_has_to_be_active(tmp_path: Path, state: str, physical: str, status: str) -> None:
    assert preflight_host.infiniband(ib(tmp_path, state, physical)).status == status


def test_a_link_that_has_trained_down_is_named_where_a_rate_is_asked_for(tmp_path: Path) -> None:
    place = ib(tmp_path, rate="100 Gb/sec (1X NDR)")._replace(needs={"ib rate": 400})
    told = preflight_host.infiniband(place)
    assert told.status == "failed" and "mlx5_0/1 100 Gb/sec" in told.value


def test_fatal_xids_of_the_last_day_count_and_others_do_not(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc/uptime", "200000.00 1.0\n").parent
    fresh = "4,1,190000000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    old = "4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    users = "4,1,190000000000,-;NVRM: Xid (PCI:0000:3b:00): 31, MMU fault\n"
    place = Place(proc=str(proc), kmsg=str(write(tmp_path / "kmsg", users + old)))
    assert preflight_host.xid(place).status == "ok"
    write(tmp_path / "kmsg", users + fresh)
    told = preflight_host.xid(place)
    assert told.status == "failed" and told.value == "Xid 79 on 0000:3b:00"
    assert preflight_host.xid(place._replace(kmsg=str(tmp_path / "nothing"))).status == "skipped"


def test_leftovers_in_shared_memory_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "nccl-abc", "x" * 4096)
    write(tmp_path / "somebody-elses", "x" * 4096)
    place = Place(shm=str(tmp_path), needs={"shm-leftovers": 1e-6})
    assert preflight_host.shm_leftovers(place).status == "failed"
    assert preflight_host.shm_leftovers(place._replace(needs={"shm-leftovers": 5e-6})).status == "ok"


def test_an_item_that_raises_or_hangs_is_skipped_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def broken(place: Place) -> Result:
        raise OSError("no such luck")

    def hangs(place: Place) -> Result:
        import time

        time.sleep(30)
        return ok("never")

    monkeypatch.setattr(preflight, "ITEMS", {"broken": ("quick", broken), "stuck": ("quick", hangs)})
    monkeypatch.setattr(preflight, "ITEM_SECONDS", 0.2)
    results = preflight.run({"set": "quick"}, said.append)
    assert [one.status for one in results] == ["skipped", "skipped"]
    assert "no such luck" in results[0].value and "no answer" in results[1].value
    assert all(LINE.match(line) for line in said)


def test_the_zipapp_runs_a_set_says_every_item_and_leaves_a_record(tmp_path: Path) -> None:
    archive = build_agent_archive(tmp_path)
    config = {"set": "quick", "needs": {"disk-size root": 1e9}, "commands": {"own": ["sh", "-c", "echo fine"]}}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(archive), "preflight", "--dir", tmp_path, "--config", json.dumps(config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    lines = done.stdout.splitlines()
    assert all(LINE.match(line) for line in lines)
    assert "item=own status=ok value=fine need=code 0 advice=" in lines
    record = json.loads((tmp_path / "preflight.json").read_text())
    assert record["ok"] is False and record["seconds"] < 10
    assert [one.item for one in map(read, record["items"]) if one and one.status == "failed"] == ["disk-size root"]


PLUGIN = """
def fabric(config):
    return {"ok": config["set"] != "quick", "value": "2 of 8 rails", "need": "8 rails", "advice": "Call them."}

def odd(config):
    return "fine"

def broken(config):
    raise OSError("no such luck")
"""


def test_other_distributions_of_the_image_bring_items_of_their_own(tmp_path: Path) -> None:
    """A real distribution, in a folder of its own; one of its items is wrong, one breaks."""
    write(tmp_path / "fabric_checks.py", PLUGIN)
    info = tmp_path / "fabric_checks-1.0.dist-info"
    write(info / "METADATA", "Metadata-Version: 2.1\nName: fabric-checks\nVersion: 1.0\n")
    names = [f"{name} = fabric_checks:{name}" for name in ("fabric", "odd", "broken")]
    write(info / "entry_points.txt", "\n".join(["[airflow_ft.preflight]", *names, "missing = fabric_checks:nothing"]))
    config = {"set": "quick", "skip": list(preflight.ITEMS), "node": "n1"}
    done = subprocess.run(
        [sys.executable, build_agent_archive(tmp_path), "preflight", "--config", json.dumps(config)],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    found = {one.item: one for one in parse(done.stdout)}
    assert found["fabric"].line() == ("item=fabric status=failed value=2 of 8 rails need=8 rails advice=Call them.")
    assert found["odd"].status == "skipped" and "give a dictionary" in found["odd"].value
    assert "no such luck" in found["broken"].value and found["missing"].status == "skipped"
    assert done.stdout.splitlines()[-1].startswith("item=preflight status=failed value=1 of 4 items failed")


def test_what_failed_stands_in_the_containers_last_words_and_fits_there(tmp_path: Path) -> None:
    """4,096 bytes are kept by the kubelet; nothing was started, and whoever looks later has to know why."""
    words = tmp_path / "termination-log"
    own = {f"check {number}": ["sh", "-c", f"echo {'x' * 190}; exit 1"] for number in range(20)}
    config = {"set": "quick", "needs": {"disk-size root": 1e9}, "commands": own, "skip": ["memory-free"]}
    done = subprocess.run(
        [sys.executable, build_agent_archive(tmp_path), "run", "--dir", tmp_path / "agent", "--last-words", words,
         "--preflight", json.dumps(config), "--", "touch", tmp_path / "trained"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    report = json.loads(words.read_text())
    assert report["preflight"][0][:2] == ["disk-size root", "failed"] and len(report["preflight"]) > 3
    assert len(words.read_bytes()) <= 4096
    assert not (tmp_path / "trained").exists()


def test_a_configuration_that_cannot_be_read_is_an_error_of_its_own() -> None:
    for text in ("{", "[]", '{"set": "huge"}', "@/does/not/exist"):
        assert preflight.main_of_command(text, None) == 2


# --- what all nodes say together ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_in_each_round_everybody_has_one_partner_and_all_pairs_meet(count: int) -> None:
    met = set()
    for turn in range(count - 1 + count % 2):
        pairs = [partners(count, rank, count)[turn] for rank in range(count)]
        for rank, other in enumerate(pairs):
            assert other == -1 or pairs[other] == rank
            met.add(frozenset((rank, other)))
    assert {pair for pair in met if -1 not in pair} == {
        frozenset((one, other)) for one in range(count) for other in range(one)
    }


NAMES = ["n1", "n2", "n3", "n4"]


def pairs_of(bad: set[frozenset[str]], **slow: float) -> list[Pair]:
    return [
        Pair(one, other, 20.0, slow.get(one, slow.get(other, 1000.0)), "timed out" if {one, other} in bad else "")
        for number, one in enumerate(NAMES)
        for other in NAMES[number + 1 :]
    ]


def test_a_bad_node_is_told_from_a_bad_pair() -> None:
    node = pairs_of({frozenset(("n2", other)) for other in ("n1", "n3", "n4")})
    assert bad_nodes(node, NAMES) == ["n2"] and bad_pairs(node, NAMES) == []
    pair = pairs_of({frozenset(("n2", "n4"))})
    assert bad_nodes(pair, NAMES) == [] and [(one.one, one.other) for one in bad_pairs(pair, NAMES)] == [("n2", "n4")]


def known(pairs: list[Pair], **speeds: float) -> dict[str, object]:
    return {
        name: {
            "pairs": [list(pair) for pair in pairs if pair.one == name],
            "together": "",
            "facts": {"cpu_speed": speeds.get(name, 1000.0)},
        }
        for name in NAMES
    }


def verdicts(told: dict[str, object]) -> dict[tuple[str, str], str]:
    return {(name, one.item): one.status for name in NAMES for one in judge(told, NAMES, name)}


def test_a_node_at_half_speed_is_named_as_the_straggler_and_nobody_else() -> None:
    found = verdicts(known(pairs_of(set()), n3=500.0))
    assert [key for key, status in found.items() if status == "failed"] == [("n3", "cpu-speed")]


@pytest.mark.parametrize(
    ("facts", "value", "advice"),
    [
        ({"cpu_limited": 0.5, "cpu_others": 0.1}, "a CPU limit kept it from running 50 % of the time", "raise the CPU"),
        ({"cpu_limited": 0.0, "cpu_others": 0.6}, "it waited for other processes 60 % of the time", "who else runs"),
        ({"cpu_limited": 0.0, "cpu_others": 0.1}, "50 % of the median", "power cap, heat"),
        ({}, "50 % of the median", "power cap, heat"),  # an older agent
    ],
)
def test_a_straggler_is_told_with_its_cause(facts: dict[str, float], value: str, advice: str) -> None:
    told: dict[str, Any] = known(pairs_of(set()), n3=500.0)
    told["n3"]["facts"].update(facts)
    (slow,) = (one for one in judge(told, NAMES, "n3") if one.item == "cpu-speed")
    assert slow.status == "failed" and value in slow.value and advice in slow.advice


def test_a_slow_link_of_one_node_is_that_nodes() -> None:
    found = verdicts(known(pairs_of(set(), n4=100.0)))
    assert [key for key, status in found.items() if status == "failed"] == [("n4", "comm")]


def test_a_clock_that_is_off_is_that_nodes() -> None:
    pairs = [
        pair._replace(ahead_seconds=60.0 * ((pair.other == "n2") - (pair.one == "n2"))) for pair in pairs_of(set())
    ]
    found = verdicts(known(pairs))
    assert [key for key, status in found.items() if status == "failed"] == [("n2", "clock")]


def test_of_two_nodes_nobody_can_say_which_is_the_odd_one() -> None:
    told = {name: entry for name, entry in known([], n1=100.0).items() if name in ("n1", "n2")}
    assert {one.item: one.status for one in judge(told, ["n1", "n2"], "n1")}["cpu-speed"] == "skipped"
    assert skipped("x").status == "skipped"


# --- who the others are ------------------------------------------------------------------------------------------


def met(count: int, ranks: list[int], seconds: float = 10.0, port: int = 21841) -> list[tuple[dict[str, Any], Result]]:
    """Nodes that meet where the environment says, each with its own; the first one's container is the last to start."""
    from concurrent.futures import ThreadPoolExecutor

    def one(rank: int) -> tuple[dict[str, Any], Result]:
        config = {"node": f"n{rank + 1}", "meet": {"count": count, "port": port}}
        env = {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank)}
        return preflight_meet.meet(config, time.monotonic() + seconds / preflight_meet.SHARE, None, env)

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(one, ranks))


def test_nodes_that_meet_know_all_and_which_one_they_are() -> None:
    found = met(3, [2, 1, 0])
    assert [told["rank"] for told, _ in found] == [2, 1, 0]
    assert {json.dumps(told["peers"]) for told, _ in found} == {
        json.dumps([[f"n{number}", "127.0.0.1", 21842] for number in (1, 2, 3)])
    }
    assert [result.line() for _, result in found] == [
        "item=peers status=ok value=3 of 3 nodes need=all nodes advice="
    ] * 3


def test_who_never_comes_keeps_nobody_waiting_for_ever() -> None:
    found = met(4, [0, 3], seconds=1.5, port=21851)
    assert [told["rank"] for told, _ in found] == [0, 1]
    assert {result.value for _, result in found} == {"2 of 4 nodes came in time: they are looked at"}


def test_where_nobody_is_to_be_met_the_reason_is_told() -> None:
    told, result = preflight_meet.meet({"meet": {"count": 2}}, time.monotonic() + 5, None, {})
    assert told == {} and result.value == "neither MASTER_ADDR nor a rank is set: nodes are looked at alone"
    ((told, result),) = met(2, [1], seconds=0.3, port=21861)
    assert told == {} and "node 0 (127.0.0.1:21861) can't be met" in result.value


def test_the_pods_of_a_probe_are_told_where_to_meet_by_a_file(tmp_path: Path) -> None:
    from threading import Thread

    def told_later() -> None:
        for rank in (0, 1):
            write(tmp_path / f"{rank}" / preflight_meet.FILE, json.dumps({"host": "127.0.0.1", "rank": rank}))

    found: dict[int, Any] = {}

    def node(rank: int) -> None:
        config = {"node": f"n{rank + 1}", "meet": {"count": 2, "told": True, "port": 21871}}
        end = time.monotonic() + 20 / preflight_meet.SHARE
        found[rank] = preflight_meet.meet(config, end, str(tmp_path / f"{rank}"), {"RANK": "7"})

    threads = [Thread(target=node, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    told_later()
    for thread in threads:
        thread.join(30)
    assert {rank: told["rank"] for rank, (told, _) in found.items()} == {0: 0, 1: 1}
    assert found[0][0]["peers"] == found[1][0]["peers"]


def test_a_port_that_never_will_be_is_told_at_once_and_not_waited_for() -> None:
    """Where torch doesn't work on node 0 the others have the rest of the time for each other."""
    peers = [Peer("n1", "127.0.0.1", 21881), Peer("n2", "127.0.0.1", 21882)]
    end = time.monotonic() + 60.0
    first, second = (Check(peers, rank, {}, end) for rank in (0, 1))
    try:
        first.publish_port(0)
        assert second.port_of(0, end) == 0
        first.publish_port(4711)
        assert second.port_of(0, end) == 4711
        assert second.port_of(0, time.monotonic() - 1.0) == 0
    finally:
        first.close()
        second.close()
    assert time.monotonic() < end
