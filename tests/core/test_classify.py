from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from airflow_ft.core.classify import Facts, LogText, classify
from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Retry, Role, Trust
from airflow_ft.core.hang import HangVerdict
from airflow_ft.diagnosis.signature_files import load_rules
from tests.shared_inputs import shared, story

LOST = Evidence(
    source="node", text="node n2 is down: lease expired", node="n2", role=Role.ROOT, fault_class=FaultClass.HW_NODE,
    trust=Trust.PLATFORM,
)  # fmt: skip


def log(text: str, node: str | None = "n1", source: str = "") -> LogText:
    return LogText(source=source or f"{node}/output", data=text.encode(), node=node)


def diagnose(*texts: str, **facts: object) -> Diagnosis:
    return classify(Facts(logs=tuple(map(log, texts)), nodes=("n1",), **facts), load_rules())  # type: ignore[arg-type]


def of_case(case: str, **facts: object) -> Diagnosis:
    data = shared("torch-logs", case, "log.txt").read_bytes()
    return classify(Facts(logs=(LogText("n1/output", data, "n1"),), nodes=("n1",), **facts), load_rules())  # type: ignore[arg-type]


def suspected(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(suspect.kind, suspect.name) for suspect in diagnosis.suspects}


# --- real torchrun logs -------------------------------------------------------------------------------------------


@pytest.mark.row("S2")
@pytest.mark.row("P2")
@pytest.mark.parametrize(
    ("case", "fault_class", "rank", "says"),
    [
        ("a_exception", "APP_ERROR", 2, "loss is nan at step 5"),  # peers print gloo's "closed by peer"
        ("b_sigkill", "UNKNOWN", 2, "SIGKILL"),  # a signal leaves no word; the peers' errors are cascades
        ("c_sigsegv", "HW_NODE", 2, "SIGSEGV"),
        ("c2_abort", "UNKNOWN", 2, "SIGABRT"),
        ("c3_exit17", "UNKNOWN", 2, "exit code 17"),  # chosen by the program, said nothing
        ("g2_oom_ulimit", "OOM_HOST", 2, "MemoryError"),
        ("i_disk_full", "ENV_ERROR", 0, "could not write its checkpoint"),  # "No space left" never appears
        ("j2_elastic_exhausted", "UNKNOWN", 2, "SIGKILL"),  # the first error, not the last attempt's
        ("j5_elastic_c10d", "APP_ERROR", 2, "loss is nan"),
    ],
)
def test_the_rank_that_stopped_first_and_its_own_words(case: str, fault_class: str, rank: int, says: str) -> None:
    diagnosis = of_case(case, first_step_seen=True)
    assert diagnosis.fault_class.value == fault_class
    assert says in diagnosis.text
    assert diagnosis.text.startswith(f"Rank {rank} on n1 ")
    assert ("rank", str(rank)) in suspected(diagnosis)
    assert diagnosis.advice


@pytest.mark.row("P9")
@pytest.mark.parametrize("case", ["d_hang_timeout", "e2_sigstop_timeout", "k_flight_gloo"])
def test_in_a_time_out_the_silent_rank_is_suspected_not_the_launchers_root_cause(case: str) -> None:
    diagnosis = of_case(case, first_step_seen=True)
    assert diagnosis.fault_class is FaultClass.COMM_HANG
    assert suspected(diagnosis) == {("rank", "2")}


@pytest.mark.row("P11")
@pytest.mark.story("CLS-07")
@pytest.mark.parametrize(
    ("case", "fault_class"),
    [
        ("f_import_error", "ENV_ERROR"),
        ("f2_no_such_script", "APP_ERROR"),
        ("h_port_in_use", "ENV_ERROR"),
        ("h2_rdzv_missing_node", "NET_FABRIC"),
        ("h3_rdzv_unreachable", "NET_FABRIC"),
        ("h4_static_master_missing", "NET_FABRIC"),
    ],
)
def test_all_alike_before_a_first_step(case: str, fault_class: str) -> None:
    diagnosis = of_case(case, first_step_seen=False, seconds_since_start=8.0)
    assert diagnosis.fault_class.value == fault_class
    assert diagnosis.at_start
    assert not diagnosis.suspects


def test_a_port_in_use_is_worth_another_try_and_a_missing_module_is_not() -> None:
    assert of_case("h_port_in_use").retry is Retry.USEFUL
    assert of_case("f_import_error").retry is Retry.USELESS


def test_the_kernels_word_explains_a_sigkill() -> None:
    dmesg = shared("torch-logs", "g_oom_cgroup", "dmesg.txt").read_text().splitlines()[-1]
    kernel = Evidence(source="kernel", text=dmesg, node="n1", trust=Trust.PLATFORM)
    assert of_case("g_oom_cgroup", first_step_seen=True).fault_class is FaultClass.UNKNOWN
    told = of_case("g_oom_cgroup", first_step_seen=True, evidence=(kernel,))
    assert told.fault_class is FaultClass.OOM_HOST
    assert told.text.startswith("Rank 2 on n1 was killed by the kernel")


# --- stories -----------------------------------------------------------------------------------------------------


@pytest.mark.story("CLS-08")
def test_the_users_exception_behind_the_launchers() -> None:
    expected = story("CLS-childfailed")
    diagnosis = diagnose(shared("stories", "CLS-childfailed.log").read_text())
    assert (diagnosis.fault_class.value, diagnosis.retry) == (expected["class"], Retry.USEFUL)
    assert diagnosis.root is not None
    assert expected["root_line_contains"] in diagnosis.root.text
    assert diagnosis.root.rank == expected["culprit_rank"]


@pytest.mark.story("CLS-11")
def test_a_role_outweighs_another_hosts_earlier_clock() -> None:
    expected = story("CLS-clock-skew")
    logs = tuple(log(shared("stories", "CLS-clock-skew", f"{n}.log").read_text(), n) for n in ("n1", "n2"))
    diagnosis = classify(Facts(logs=logs), load_rules())
    assert diagnosis.fault_class.value == expected["class"]
    assert diagnosis.root is not None
    assert (diagnosis.root.rank, diagnosis.root.node) == (expected["culprit_rank"], "n2")


@pytest.mark.story("CLS-14")
def test_the_tasks_own_code_behind_the_jobs_143() -> None:
    text = shared("stories", "CLS-srun-143.log").read_text()
    diagnosis = classify(Facts(logs=(log(text, None, "slurm.out"),)), load_rules())
    assert diagnosis.fault_class is FaultClass.APP_ERROR
    assert diagnosis.root is not None
    assert story("CLS-srun-143")["root_line_contains"] in diagnosis.root.text


@pytest.mark.story("WAT-09")
def test_interleaved_tracebacks() -> None:
    expected = story("WAT-interleaved")
    diagnosis = diagnose(shared("stories", "WAT-interleaved.log").read_text())
    assert diagnosis.fault_class.value == expected["class"]
    assert expected["root_line_contains"] in diagnosis.text
    assert not any(kind == "rank" for kind, _ in suspected(diagnosis))


@pytest.mark.story("WAT-10")
def test_equal_prefixes_on_two_nodes() -> None:
    expected = story("WAT-two-nodes")
    logs = tuple(log(shared("stories", "WAT-two-nodes", f"{n}.log").read_text(), n) for n in ("gpu-a17", "gpu-a22"))
    diagnosis = classify(Facts(logs=logs, nodes=("gpu-a17", "gpu-a22")), load_rules())
    assert diagnosis.fault_class.value == expected["class"]
    assert diagnosis.suspect_nodes == (expected["culprit_node"],)


@pytest.mark.story("CLS-02")
def test_a_lost_node_outweighs_the_victims() -> None:
    victim = Evidence(source="exit", text="the command on n1 ended with code 1", node="n1", code=1)
    diagnosis = diagnose("RuntimeError: Socket closed\n", evidence=(victim, LOST))
    assert (diagnosis.fault_class, diagnosis.suspect_nodes) == (FaultClass.HW_NODE, ("n2",))
    assert diagnosis.evidence[0].trust is Trust.PLATFORM


@pytest.mark.story("CLS-01")
def test_a_planned_stop_is_nobodys_fault() -> None:
    diagnosis = of_case("b_sigkill", planned_stop="the platform asked the job to stop (TERM)")
    assert diagnosis.disruption
    assert not diagnosis.suspects


# --- what the job's own words can't do ----------------------------------------------------------------------------

FAKE_XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"


@pytest.mark.story("SEC-05")
def test_a_printed_xid_alone_excludes_no_node() -> None:
    diagnosis = diagnose(FAKE_XID)
    assert diagnosis.suspect_nodes == ()
    assert diagnosis.confidence <= 0.4


@pytest.mark.story("SEC-05")
def test_a_log_names_no_node_but_its_own() -> None:
    text = FAKE_XID + "CUDA error: uncorrectable ECC error encountered\n"
    strange = classify(Facts(logs=(log(text, "n1"),), nodes=("n7",)), load_rules())
    assert strange.suspect_nodes == ()
    assert diagnose(text).suspect_nodes == ("n1",)


@pytest.mark.story("SEC-05")
@pytest.mark.row("P3")
def test_our_own_lines_and_our_own_rules_match_nothing() -> None:
    rule = next(signature for signature in load_rules().signatures if signature.id == "cuda.out_of_memory")
    text = (
        f"  - id: cuda.out_of_memory\n    pattern: '{rule.pattern}'\n    match: [\"{rule.examples.match[0]}\"]\n"
        f'policy = {{"pattern": "{rule.pattern}"}}\n'
        'ft-agent 12ab {"event":"report","text":"CUDA out of memory. Tried to allocate"}\n'
    )
    assert diagnose(text).fault_class is FaultClass.UNKNOWN


@pytest.mark.story("CLS-15")
def test_what_an_earlier_generation_left_in_the_log_is_not_evidence() -> None:
    text = 'KeyError: \'old\'\nft-agent 12ab {"generation":1,"pid":7,"event":"start"}\nMemoryError\n'
    assert diagnose(text).fault_class is FaultClass.OOM_HOST


def test_an_exception_after_which_training_went_on_is_not_the_cause() -> None:
    text = "ValueError: bad sample, skipped\nstep 7\nstep 8\nstep 9\nMemoryError\n"
    assert diagnose(text).fault_class is FaultClass.OOM_HOST


def test_each_line_is_taken_once_though_it_stands_in_two_logs() -> None:
    line = "KeyError: 'x'"
    logs = (log(f"[default1]:{line}\n"), log(f"{line}\n", source="n1/rank1.stderr"))
    diagnosis = classify(Facts(logs=logs, nodes=("n1",)), load_rules())
    assert sum(item.text == line for item in diagnosis.evidence) == 1


# --- hangs, codes, nothing ----------------------------------------------------------------------------------------


@dataclass
class Group:
    ranks: tuple[int, ...]
    stack: str
    node: str = "n1"
    pids: tuple[int, ...] = field(default=())
    stopped: bool = False


@pytest.mark.row("P9")
def test_in_a_hang_the_rank_with_another_stack_is_suspected() -> None:
    verdict = HangVerdict(last_step=5, text="No step after step 5 for 130 s, 120 s are allowed.")
    stacks = (Group((0, 1, 3), "_engine_run_backward"), Group((2,), "<module> (train.py:25)"))
    diagnosis = diagnose("step 5\n", hang=verdict, stacks=stacks)
    assert diagnosis.fault_class is FaultClass.COMM_HANG
    assert suspected(diagnosis) == {("rank", "2")}
    assert diagnosis.text == "No step after step 5 for 130 s, 120 s are allowed. Rank 2 differs from the others."


VERDICT = HangVerdict(last_step=5, text="No step after step 5 for 130 s.")


@pytest.mark.row("P9")
def test_equal_stacks_of_two_nodes_are_one_group() -> None:
    """Each node groups only its own processes, so that both groups of n2 looked like a minority."""
    stacks = (Group((0, 1), "all_reduce"), Group((2,), "all_reduce", "n2"), Group((3,), "sleep", "n2"))
    facts = Facts(nodes=("n1", "n2"), hang=VERDICT, stacks=stacks)
    diagnosis = classify(facts, load_rules())
    assert suspected(diagnosis) == {("rank", "3"), ("node", "n2")}
    assert diagnosis.text.endswith("Rank 3 on n2 differs from the others.")


def test_only_the_main_threads_frames_count() -> None:
    def spied(state: str, *others: str) -> str:
        return "\n".join((f'Thread  ({state}): "MainThread"', "    backward (x.py:1)", *others))

    loading = 'Thread  (idle): "pin_memory"\n    get (queue.py:5)\nThread  (idle): "MainThread"\n    load (y.py:1)'
    stacks = (
        Group((0, 1), spied("idle", 'Thread  (idle): "pin_memory"', "    get (queue.py:5)")),
        Group((2,), spied("active"), "n2"),
        Group((3,), loading, "n2"),
    )  # fmt: skip
    assert ("rank", "3") in suspected(classify(Facts(nodes=("n1", "n2"), hang=VERDICT, stacks=stacks), load_rules()))


@pytest.mark.row("P9")
def test_a_stopped_rank_is_named_before_all_others() -> None:
    """It can't show its stack; its peers stand in the collective, the launchers (without a rank) somewhere else."""
    stacks = (
        Group((), "wait (torchrun)", "n1", (7,)), Group((0,), "all_reduce"), Group((1,), "broadcast"),
        Group((2,), "all_reduce", "n2"), Group((3,), "", "n2", (9,), stopped=True),
    )  # fmt: skip
    diagnosis = classify(Facts(nodes=("n1", "n2"), hang=VERDICT, stacks=stacks), load_rules())
    assert suspected(diagnosis) == {("rank", "3"), ("node", "n2")}
    assert diagnosis.text == "No step after step 5 for 130 s. Rank 3 on n2 is stopped (SIGSTOP)."


def test_a_hang_whose_stacks_are_all_alike_suspects_nobody() -> None:
    verdict = HangVerdict(text="No step after step 5 for 130 s.")
    assert diagnose("", hang=verdict, stacks=(Group((0, 1), "a"), Group((2, 3), "b"))).suspects == ()


def test_the_commands_own_signal_counts_when_the_log_is_silent() -> None:
    end = Evidence(source="exit", text="the command on n1 ended by SIGKILL", node="n1", code=-9)
    diagnosis = diagnose("step 5\n", evidence=(end,))
    assert diagnosis.text == "The command on n1 was killed by SIGKILL."


def test_the_platforms_full_disk_explains_a_silent_end() -> None:
    disk = Evidence(
        source="disk", text="the disk is full: 0 MB are free", role=Role.ROOT, fault_class=FaultClass.ENV_ERROR,
        trust=Trust.PLATFORM,
    )  # fmt: skip
    diagnosis = diagnose("step 5\n", evidence=(disk,))
    assert (diagnosis.fault_class, diagnosis.text) == (FaultClass.ENV_ERROR, "The disk is full: 0 MB are free.")


def test_nothing_known_is_unknown_with_the_last_words() -> None:
    diagnosis = diagnose("step 5\ngood bye, cruel world\n")
    assert diagnosis.fault_class is FaultClass.UNKNOWN
    assert diagnosis.confidence <= 0.2
    assert diagnosis.root is not None
    assert diagnosis.root.text == "good bye, cruel world"


def test_two_different_exceptions_are_two_causes() -> None:
    assert diagnose("KeyError: 'a'\n").cause() != diagnose("ValueError: b\n").cause()


def test_garbage_is_no_error() -> None:
    facts = Facts(logs=(LogText("x", bytes(range(256)) * 50), LogText("y", b"")), gone=True)
    assert classify(facts, load_rules()).fault_class is FaultClass.UNKNOWN


@pytest.mark.story("CLS-05")
@pytest.mark.parametrize(
    ("text", "disruption"),
    [
        (
            "JobID State ExitCode Elapsed Timelimit\n77 PREEMPTED 0:15 00:00:20 00:02:00\nJobState=PREEMPTED",
            "preemption",
        ),
        ("JobID State ExitCode Elapsed Timelimit\n77 TIMEOUT 0:0 00:02:01 00:02:00\nJobState=TIMEOUT", "time limit"),
    ],
)
def test_the_schedulers_word_says_whether_it_was_preempted_or_timed_out(text: str, disruption: str) -> None:
    """Nothing is computed from elapsed time: a job of two minutes that was preempted is not timed out."""
    told = classify(Facts(logs=(log(text),), scheduler_in_log=True), load_rules())
    assert told.disruption == disruption
    assert (told.fault_class, told.retry, told.suspects) == (FaultClass.UNKNOWN, Retry.USEFUL, ())


def test_one_process_that_was_killed_at_the_start_is_alike_to_nobody() -> None:
    killed = "E0101 1 torch/x.py:1] failed (exitcode: -9) local_rank: {0} (pid: {0}7) of binary: python"
    start = {"first_step_seen": False, "seconds_since_start": 5.0}
    assert diagnose(killed.format(0), **start).fault_class is FaultClass.UNKNOWN
