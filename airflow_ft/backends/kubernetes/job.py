"""``KubernetesJob``: what a user writes to train on Kubernetes, and what can be known to be wrong with it beforehand.

A manifest is a path, YAML text, or a dictionary. It is read when the DAG is parsed, so a missing file is an error
there. Text with templates is understood after they are rendered; a dictionary may hold templates in its values. Every
problem names its path in the manifest, and all problems are told at once.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import Field, PrivateAttr, field_validator, model_validator
from typing_extensions import Self

from airflow_ft.backends.base import SECRET_LENGTH, SECRET_NAME, TrainingJob
from airflow_ft.backends.environment import name_problems
from airflow_ft.backends.kubernetes import restarts, wrapping
from airflow_ft.backends.kubernetes.kinds import KINDS, TRAINS, Json, Kind, Template, dotted, kind_of, walk

GPU = ".com/gpu"  # nvidia.com/gpu, amd.com/gpu: how clusters call accelerators
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
PLATFORM_RESTARTS = "The platform restarts this job by its own rules (platform_restarts); airflow_ft only resubmits."
POLICY_ANNOTATIONS = "fault-tolerance/"  # mission M7


class KubernetesJob(TrainingJob):
    """A training job on Kubernetes. Each attempt is one object made from the manifest.

    :param manifest: path of a YAML file, YAML text, or a dictionary: a PyTorchJob, TrainJob, RayJob, JobSet, MPIJob
        (v2beta1), Volcano Job or Job. A relative path is looked for beside the DAG file and where Airflow runs.
    :param conn_id: a connection of type Kubernetes.
    :param namespace: where the job is made; default: the manifest's, then the connection's, then ``default``.
    :param container: the name of the container that trains, in pods with several. Default: the kind's own
        (``pytorch``), the pod's default container, the one that asks for GPUs, the first.
    :param agent: whether the agent goes around the training command (restarts in place, stacks).
    :param exclusion: ``hard``: excluded nodes are never used; ``soft``: only if there is no other.
    :param platform_restarts: let the operator restart by its own settings. Default: they are set to never.
    :param lost_node_seconds: how long pods stay on a node that is lost (the cluster's default is 300); ``None``: as the
        cluster has it.
    :param abandon_lost_after_seconds: when a job is stopped, pods on a node that has been lost for so long no longer
        count as running. ``None`` (default): they do until the node is back, or the cluster says that it is really down
        (its object is deleted, or the taint ``node.kubernetes.io/out-of-service``). A node that is only cut off trains
        on: set it only where nodes that lose the network are powered off.
    :param start_error_seconds: how long an image that can't be pulled or a configuration that is missing may stay so.
    :param volume_error_seconds: how long a volume may fail to be attached or mounted, or a pod's sandbox to be made.
        Kubernetes itself waits six minutes before it takes a volume away from a node that is silent.
    """

    backend: ClassVar[str] = "kubernetes"

    manifest: dict[str, Any] | str
    conn_id: str = "kubernetes_default"
    namespace: str | None = None
    container: str | None = None
    agent: bool = True
    exclusion: Literal["hard", "soft"] = "hard"
    platform_restarts: bool = False
    lost_node_seconds: int | None = Field(default=30, ge=0)
    abandon_lost_after_seconds: float | None = Field(default=None, ge=0)
    start_error_seconds: float = Field(default=60.0, ge=0)
    volume_error_seconds: float = Field(default=600.0, ge=0)

    _document: Json | None = PrivateAttr(default=None)

    @field_validator("manifest")
    @classmethod
    def _read(cls, given: dict[str, Any] | str) -> dict[str, Any] | str:
        text = _text_of(given) if isinstance(given, str) else given
        if isinstance(text, str) and not has_templates(text):
            return _parsed(text)
        return text

    @model_validator(mode="after")
    def _is_a_training_job(self) -> Self:
        if isinstance(self.manifest, dict):
            found = problems(self.manifest, self.container)
            if found:
                raise ValueError("\n".join(found))
        return self

    @property
    def document(self) -> Json:
        """The manifest as an object. Raises ``ValueError`` while it is text whose templates aren't rendered."""
        if self._document is None:
            document = self.manifest if isinstance(self.manifest, dict) else _parsed(self.manifest)
            found = problems(document, self.container)
            if found:
                raise ValueError("\n".join(found))
            self._document = document
        return self._document

    @property
    def kind(self) -> Kind:
        """The manifest's row in the table of kinds."""
        kind = kind_of(self.document)
        assert kind is not None, "checked by problems"
        return kind

    @property
    def api_version(self) -> str:
        """The manifest's ``apiVersion``."""
        return str(self.document["apiVersion"])

    def nodes_needed(self) -> int:
        """How many nodes one attempt takes at most: one for each pod that trains."""
        return max(1, sum(one.count for one in self.kind.templates(self.document) if one.role == TRAINS))

    def gpus(self) -> int:
        """How many GPUs one attempt holds, as its containers ask for them."""
        templates = self.kind.templates(self.document)
        return sum(one.count * gpus_of(walk(self.document, one.path)) for one in templates if one.role == TRAINS)

    def digest(self) -> str:
        """Fingerprint of the job: the same name with another one is another job."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True, default=str).encode()).hexdigest()

    def remarks(self) -> tuple[str, ...]:
        """Say who restarts this job, and which of its settings are changed for that (story RST-10)."""
        if self.platform_restarts:
            return (PLATFORM_RESTARTS,)
        return tuple(setting.text for setting in restarts.found(self.kind, self.document))

    def policy_annotations(self) -> dict[str, str]:
        """Return the manifest's annotations that set the policy when the task gives none."""
        if isinstance(self.manifest, str):
            return {}
        annotations = walk(self.manifest, ("metadata", "annotations")) or {}
        return {key: value for key, value in annotations.items() if str(key).startswith(POLICY_ANNOTATIONS)}

    def secrets(self) -> tuple[str, ...]:
        """Return the values of environment variables with a telling name."""
        try:
            document = self.document
        except ValueError:
            return ()
        entries = ((entry.get("name"), entry.get("value")) for entry in environment_entries(document))
        found = {v for n, v in entries if isinstance(n, str) and isinstance(v, str) and SECRET_NAME.search(n)}
        return tuple(sorted(value for value in found if len(value) >= SECRET_LENGTH))

    def serialize(self) -> dict[str, object]:
        """What the rendered-fields view of Airflow shows: no value of the environment, no known secret."""
        shown = super().serialize()
        for entry in environment_entries(shown.get("manifest")):
            if "value" in entry:
                entry["value"] = "***"
        return shown


def has_templates(text: str) -> bool:
    """Whether Airflow has something to render in a text."""
    return "{{" in text or "{%" in text


def training_container(pod_spec: Json, name: str | None = None, default: str | None = None) -> Json:
    """Return the container that trains: the named one, the pod's default, the one that asks for GPUs, the first."""
    containers: list[Json] = [one for one in pod_spec.get("containers") or () if isinstance(one, dict)]
    for wanted in (name, default):
        named = next((one for one in containers if wanted and one.get("name") == wanted), None)
        if named is not None:
            return named
    gpus = [one for one in containers if _asks_for_gpus(one)]
    return (gpus or containers or [{}])[0]


def environment_entries(document: Any) -> Iterator[dict[str, Any]]:
    """Yield every entry of an ``env`` list, wherever it is."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "env" and isinstance(value, list):
                yield from (entry for entry in value if isinstance(entry, dict))
            else:
                yield from environment_entries(value)
    elif isinstance(document, list):
        for value in document:
            yield from environment_entries(value)


# --- what is wrong with it ---------------------------------------------------------------------------------------


def problems(document: Json, container: str | None = None) -> list[str]:
    """Return what is wrong with a manifest, each as: path, given, allowed, what to do."""
    kind = kind_of(document)
    if kind is None:
        given = f"{document.get('apiVersion')} {document.get('kind')}"
        known = ", ".join(f"{version} {name}" for version, name in sorted(KINDS))
        return [f"manifest.kind: {given!r} is not allowed. Known are: {known}."]
    templates = kind.templates(document)
    if not templates:
        return ["manifest.spec: has no pod templates. Write at least one replica."]
    found = _ray_problems(document) if kind.kind == "RayJob" else []
    for template in templates:
        if template.path:
            found += _template_problems(kind, template, walk(document, template.path), container)
    return found + _name_problems(document)


def _template_problems(kind: Kind, template: Template, pod: Any, container: str | None) -> list[str]:
    path = f"manifest.{dotted(template.path)}"
    containers = walk(pod, ("spec", "containers"))
    if not isinstance(containers, list) or not containers or not all(isinstance(one, dict) for one in containers):
        return [f"{path}.spec.containers: {containers!r:.60} is not allowed. Give a list with at least one container."]
    found = []
    for number, one in enumerate(containers):
        if not one.get("image"):
            found.append(f"{path}.spec.containers[{number}].image: is missing. Name the image to run.")
        command = one.get("command")
        if command is not None and not (isinstance(command, list) and all(isinstance(w, str) for w in command)):
            text = f"{command!r:.60} is not allowed. Give a list of strings."
            found.append(f"{path}.spec.containers[{number}].command: {text}")
    names = [one.get("name") for one in containers]
    wanted = container if container and template.role == TRAINS else kind.container
    if wanted and template.role == TRAINS and wanted not in names:
        found.append(
            f"{path}.spec.containers: none is named {wanted!r}. There are {names}. Name the one that trains so."
        )
    return found + _mount_problems(path, pod["spec"])


def _mount_problems(path: str, spec: Json) -> list[str]:
    taken = {one.get("name") for one in spec.get("volumes") or () if isinstance(one, dict)}
    ours = {wrapping.ARCHIVE_VOLUME, wrapping.STATE_VOLUME} & taken
    return [f"{path}.spec.volumes: the names {sorted(ours)} are not allowed. They are ours. Rename."] if ours else []


def _ray_problems(document: Json) -> list[str]:
    if not isinstance(walk(document, ("spec", "entrypoint")), str):
        return ["manifest.spec.entrypoint: is missing. Write the command that trains."]
    return []


def _name_problems(document: Json) -> list[str]:
    names = {str(entry.get("name")) for entry in environment_entries(document)}
    # torchrun's own settings may stand in a manifest; what we and the scheduler set may not.
    return [f"manifest: {text}" for text in name_problems(sorted(name for name in names if name.startswith("FT_")))]


# --- reading it --------------------------------------------------------------------------------------------------


def _text_of(given: str) -> str:
    """Return YAML text: the given one, or that of the file it names."""
    if "\n" in given or "kind:" in given:
        return given
    if has_templates(given):
        raise ValueError(f"{given!r:.80} is not allowed: a path can't hold templates. Give a plain path.")
    path = _found(Path(given).expanduser())
    if path is None:
        raise ValueError(f"{given!r:.80} is not allowed: there is no such file. Give a path that exists, or YAML text.")
    return path.read_text(encoding="utf-8")


def _found(path: Path) -> Path | None:
    """Look for a relative path beside the file that makes the job, then in the working folder."""
    if path.is_absolute():
        return path if path.is_file() else None
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        beside = Path(name).parent / path
        if not name.startswith("<") and "site-packages" not in name and beside.is_file():
            return beside
        frame = frame.f_back
    return path if path.is_file() else None


def _parsed(text: str) -> Json:
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise ValueError(f"manifest: is no YAML: {error}") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ValueError(f"manifest: {len(documents)} documents are not allowed. Give one object.")
    return documents[0]


def gpus_of(pod: Any) -> int:
    """Count the GPUs that the containers of a pod template may use."""
    containers = walk(pod, ("spec", "containers")) if isinstance(pod, dict) else None
    limits = [walk(one, ("resources", "limits")) or {} for one in containers or () if isinstance(one, dict)]
    wanted = [value for limit in limits for name, value in limit.items() if GPU in str(name)]
    return sum(int(value) for value in wanted if str(value).isdigit())


def _asks_for_gpus(container: Json) -> bool:
    parts = [walk(container, ("resources", part)) or {} for part in ("limits", "requests")]
    return any(GPU in str(name) for part in parts for name in part)
