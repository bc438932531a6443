"""Packs `airflow_ft.agent` into the one file that every node gets: a zipapp that needs a Python and nothing else.

Used by all backends: the local one runs it, Slurm copies it to shared storage, Kubernetes puts it into a ConfigMap. The
same sources give the same bytes (fixed times, sorted names, no compression, since zlib's bytes differ by version), and
the name carries their hash: an object of that name can be adopted after comparing its content, and two versions of
airflow_ft never overwrite each other's agent.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "ft_agent"
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = b"import sys\n\nfrom ft_agent.cli import main\n\nsys.exit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can tell


def build_agent_archive(folder: Path) -> Path:
    """Write the agent as ``agent-<sha256[:12]>.pyz`` into `folder`, unless it is there already; returns its path."""
    content = agent_archive_bytes()
    path = folder / f"agent-{hashlib.sha256(content).hexdigest()[:12]}.pyz"
    if path.is_file() and path.read_bytes() == content:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def agent_archive_bytes() -> bytes:
    """The zipapp's content."""
    source = Path(__file__).resolve().parent.parent / "agent"
    files = {f"{PACKAGE}/{path.relative_to(source).as_posix()}": path.read_bytes() for path in source.rglob("*.py")}
    files["__main__.py"] = _MAIN
    buffer = io.BytesIO(_SHEBANG)
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()
