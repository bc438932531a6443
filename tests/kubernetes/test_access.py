"""What an account needs: the documented Role is enough for a whole life of a job, in a restricted namespace too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_ft.backends import connections
from airflow_ft.backends.base import JobState, Order, SubmissionRefusedError, UnreachableError
from airflow_ft.backends.connections import ConnectionValues
from airflow_ft.backends.kubernetes import permissions
from tests.kubernetes.lab import CONNECTION, Lab
from tests.kubernetes.trainings import PROGRAM

pytestmark = [pytest.mark.kubernetes]
ACCOUNT = "airflow-ft-test"
PLUGIN = "client.authentication.k8s.io/v1"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "readOnlyRootFilesystem": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def account(lab: Lab, role: list[dict[str, Any]]) -> None:
    """Make an account with this Role, and let the connection use it from now on."""
    subject = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": lab.namespace}]
    objects: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}]
    for one in role:
        name = f"{one['metadata']['name']}-{lab.namespace}"
        made = {**one, "metadata": {"name": name}}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": one["kind"], "name": name}
        binding = {"apiVersion": one["apiVersion"], "kind": f"{one['kind']}Binding", "metadata": {"name": name}}
        objects += [made, {**binding, "roleRef": reference, "subjects": subject}]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    lab.cluster.kubectl("-n", lab.namespace, "apply", "-f", "-", given=given)
    token = lab.kubectl("create", "token", ACCOUNT).strip()
    admin = json.loads(lab.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config = {
        **admin,
        "users": [{"name": ACCOUNT, "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": admin["clusters"][0]["name"], "user": ACCOUNT}}],
        "current-context": "it",
    }

    async def resolve(conn_id: str) -> ConnectionValues:
        return ConnectionValues(conn_id, extra={"kube_config": json.dumps(config), "namespace": lab.namespace})

    connections.use(resolve)


def manifest(mode: str) -> dict[str, Any]:
    """A Job that a namespace which enforces "restricted" takes."""
    container = {
        "name": "main",
        "image": "docker.io/airflow-ft/python:1",
        "command": ["python3", "-c", PROGRAM, mode],
        "securityContext": RESTRICTED,
    }
    pod = {"restartPolicy": "Never", "containers": [container]}
    spec = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": spec}


@pytest.mark.story("SEC-01")
def test_the_documented_role_and_a_restricted_namespace_are_enough(lab: Lab) -> None:
    """Submit, watch, logs, orders, evidence, cancel; as a user that is not root, on a read-only root file system."""
    lab.kubectl("label", "namespace", lab.namespace, "pod-security.kubernetes.io/enforce=restricted")
    account(lab, permissions.role())

    async def story(lab: Lab) -> None:
        found = await permissions.findings(CONNECTION)
        assert [one for one in found if one.ok is False] == []
        job = lab.job("Job", "crash-once", options={"manifest": manifest("crash-once")})
        ref = await lab.backend.submit(job, lab.submission())
        await lab.until(ref, JobState.HELD)
        assert await lab.backend.restart_in_place(ref, Order(generation=1, digest="d1")) == []
        seen = await lab.until(ref, JobState.ENDED)
        assert (seen.code, seen.generation) == (0, 1)
        assert "step 3/3" in await lab.output(ref)
        await lab.backend.log_tails(ref, 1000)
        await lab.backend.cancel(ref, 1.0)
        assert lab.pods() == []
        assert "Submitted" in lab.kubectl("get", "events")

    lab.play(story)


@pytest.mark.story("SEC-01")
def test_what_is_not_allowed_is_named_with_what_will_not_work(lab: Lab) -> None:
    """By doctor, and by the call that needs it: refused is not unreachable, and unseen is not gone."""
    role, nodes = permissions.role()
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] not in (["pods/exec"], ["configmaps"])]
    account(lab, [role, nodes])

    async def story(lab: Lab) -> None:
        found = {one.name.split(" ")[0]: one for one in await permissions.findings(CONNECTION)}
        assert found["pods/exec"].ok is False
        assert "no restart in place" in found["pods/exec"].text
        assert found["pods/log"].ok is True
        job = lab.job("Job", "ok", options={"manifest": manifest("ok")})
        with pytest.raises((SubmissionRefusedError, UnreachableError), match="configmaps"):
            await lab.backend.submit(job, lab.submission())
        assert lab.kubectl("get", "jobs", "-o", "name") == ""

    lab.play(story)


@pytest.mark.story("WAT-16")
def test_a_token_that_dies_while_training_runs_is_asked_for_anew(lab: Lab, tmp_path: Path) -> None:
    """From the kubeconfig's own plugin; a 401 is no word on the job."""
    account(lab, permissions.role())
    credential = tmp_path / "credential.json"

    def hand_out(holder: str) -> str:
        """A token that dies with an object of this name."""
        lab.kubectl("create", "secret", "generic", holder)
        bound = ("--bound-object-kind=Secret", f"--bound-object-name={holder}")
        token = lab.kubectl("create", "token", ACCOUNT, *bound).strip()
        told = {"apiVersion": PLUGIN, "kind": "ExecCredential", "status": {"token": token}}
        credential.write_text(json.dumps(told))
        return token

    admin = json.loads(lab.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    plugin = {"apiVersion": PLUGIN, "command": "cat", "args": [str(credential)], "interactiveMode": "Never"}
    context = {"cluster": admin["clusters"][0]["name"], "user": ACCOUNT}
    config = {
        **admin,
        "users": [{"name": ACCOUNT, "user": {"exec": plugin}}],
        "contexts": [{"name": "it", "context": context}],
        "current-context": "it",
    }

    async def resolve(conn_id: str) -> ConnectionValues:
        return ConnectionValues(conn_id, extra={"kube_config": json.dumps(config), "namespace": lab.namespace})

    async def story(lab: Lab) -> None:
        token = hand_out("first")
        connections.use(resolve)
        ref = await lab.submit("Job", "until-told")
        await lab.until(ref, JobState.RUNNING)
        hand_out("second")
        lab.kubectl("delete", "secret", "first")

        async def dead() -> bool:
            url = f"{admin['clusters'][0]['cluster']['server']}/api/v1/namespaces/{lab.namespace}/pods"
            async with httpx.AsyncClient(verify=False) as client:
                answer = await client.get(url, headers={"Authorization": f"Bearer {token}"})
            return answer.status_code == 401

        await lab.eventually(dead, "the first token is dead")
        groups = await lab.backend.dump_stacks(ref)
        assert {group.node for group in groups} == {pod["spec"]["nodeName"] for pod in lab.pods()}, "exec asks anew too"
        assert (await lab.backend.observe(ref)).state is JobState.RUNNING
        assert "step 3/3" in await lab.output(ref)
        lab.tell()
        assert (await lab.until(ref, JobState.ENDED)).code == 0

    lab.play(story)
