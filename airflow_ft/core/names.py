"""Names of chains and attempts: known before anything exists, legal everywhere, never two alike.

A chain's id is a readable slug of the task plus a hash of *everything* that identifies the chain, the first task
instance included: a DAG run that was deleted and made anew under the same id is another chain. Slug and hash are
lower-case letters, digits and dashes, which Kubernetes (object names and labels), Slurm and Ray all take. At most 50
characters, so that ``-worker-127`` and a pod's hash still fit into 63 (story SUB-06).
"""

from __future__ import annotations

import hashlib
import re

SLUG_LENGTH = 24
HASH_LENGTH = 12  # 60 bits of base32: no two among a million chains


def chain_id(dag_id: str, run_id: str, task_id: str, map_index: int = -1, first_try: str = "") -> str:
    """Return the id of the chain of this task instance. ``first_try`` is the id of the chain's first try."""
    identity = "\x00".join((dag_id, run_id, task_id, str(map_index), first_try))
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_LENGTH]
    slug = re.sub(r"[^a-z0-9]+", "-", task_id.lower())[:SLUG_LENGTH].strip("-")
    if not slug[:1].isalpha():  # a Kubernetes service, made from this name, must begin with a letter
        slug = f"t-{slug}".strip("-")
    return f"{slug}-{digest}"


def attempt_name(chain: str, number: int) -> str:
    """Return the name of attempt ``number``. The number can be read off it."""
    return f"{chain}-a{number}"
