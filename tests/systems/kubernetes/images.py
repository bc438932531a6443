"""Container images without a registry: one with Python and the usual small programs, made of this machine's own files.

It is Debian's (or whoever's) ``/usr/bin/python3`` with its standard library, a shell and what operators call in their
init containers and probes. Programs that need more (PyTorch) get this project's virtual environment mounted from the
host; the C++ libraries for that are in the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

PYTHON_IMAGE = "docker.io/airflow-ft/python:1"
PAUSE_IMAGE = "docker.io/airflow-ft/pause:1"
HOST_PYTHON = "/usr/bin/python3"
PROGRAMS = (
    *(
        "sh",
        "bash",
        "env",
        "getent",
        "hostname",
        "id",
        "kill",
        "ps",
        "setsid",
        "sleep",
        "timeout",
        "wget",
        "nproc",
        "free",
    ),
    *(
        "cat",
        "chmod",
        "cp",
        "dd",
        "df",
        "find",
        "head",
        "ln",
        "ls",
        "mkdir",
        "mv",
        "rm",
        "stat",
        "tail",
        "tee",
        "touch",
    ),
    *("awk", "date", "echo", "expr", "false", "grep", "printenv", "sed", "seq", "sort", "tr", "true", "uname", "wc"),
    "xargs",
)
OPTIONAL = frozenset({"wget", "setsid"})  # Ray's probes call wget; only they miss it
# What PyTorch and names by DNS need and no program here is linked against.
LIBRARIES = (
    *("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libpthread.so.0", "libdl.so.2", "librt.so.1"),
    *("libutil.so.1", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1"),
)
NOT_NEEDED = {
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "dist-packages",
}
# training-operator's init container asks for its master's name like this.
NSLOOKUP = b'#!/bin/sh\nexec getent hosts "$1"\n'
FILES = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": b"hosts: files dns\n",
}
FOLDERS = ("usr/bin", "usr/lib", "usr/lib64", "tmp", "etc", "root", "proc", "sys", "dev", "var/run", "mnt")
# Everything is below usr, whatever the host has.
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/bin"}


def write(path: Path) -> None:
    """Write both images into one archive that ``ctr images import`` takes."""
    layer = _layer()
    commands = {PYTHON_IMAGE: ["python3"], PAUSE_IMAGE: ["sleep", "infinity"]}
    _write_archive(path, layer, commands)


def missing() -> list[str]:
    """Programs that this machine would have to have."""
    needed = [name for name in PROGRAMS if name not in OPTIONAL]
    return [name for name in [HOST_PYTHON, *needed] if shutil.which(name) is None]


def _layer() -> bytes:
    files, links = _contents()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, target in {**LINKS, **links}.items():
            _add(archive, name, kind=tarfile.SYMTYPE, target=target)
        for name in FOLDERS:
            _add(archive, name, kind=tarfile.DIRTYPE, mode=0o1777 if name == "tmp" else 0o755)
        for name, path in sorted(files.items()):
            _add(archive, name, path.read_bytes(), mode=0o755 if os.access(path, os.X_OK) else 0o644)
        _add(archive, "usr/bin/nslookup", NSLOOKUP, mode=0o755)
        for name, content in FILES.items():
            _add(archive, name, content)
    return raw.getvalue()


def _contents() -> tuple[dict[str, Path], dict[str, str]]:
    """Which file of this machine goes where, and the links to them."""
    version, stdlib = _ask_python(
        "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('stdlib'))"
    )
    python = f"python{version}"
    found = {f"/usr/bin/{name}": path for name in PROGRAMS if (path := shutil.which(name))}
    found[f"/usr/bin/{python}"] = HOST_PYTHON
    found |= {str(path): str(path) for path in _stdlib(Path(stdlib))}
    linked = {library for path in list(found.values()) if _is_binary(path) for library in _linked(path)}
    found |= {library: library for library in linked} | dict(_extra_libraries())
    files = {_inside(name): Path(path).resolve() for name, path in found.items()}
    links = {"usr/bin/python3": python, "usr/bin/python": python}
    return files, links


def _ask_python(code: str) -> list[str]:
    done = subprocess.run(
        [HOST_PYTHON, "-I", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def _stdlib(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_NEEDED and not name.startswith("config-")]
        yield from (path for name in names if (path := Path(top, name)).is_file())


def _is_binary(path: str) -> bool:
    return ".so" in path or path.startswith(("/usr/bin", "/bin", "/usr/sbin", "/sbin"))


def _linked(path: str) -> set[str]:
    done = subprocess.run(["ldd", path], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return set(re.findall(r"(/\S+)", done.stdout)) - {f"{path}:"}


def _extra_libraries() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        for folder in ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"):
            if os.path.exists(f"{folder}/{name}"):
                yield f"{folder}/{name}", f"{folder}/{name}"
                break


def _inside(name: str) -> str:
    return re.sub(r"^/(lib64|lib|bin)/", r"/usr/\1/", name).lstrip("/")


def _add(
    archive: tarfile.TarFile,
    name: str,
    content: bytes = b"",
    *,
    mode: int = 0o644,
    kind: bytes = tarfile.REGTYPE,
    target: str = "",
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, mode, target, len(content)
    archive.addfile(entry, io.BytesIO(content))


def _write_archive(path: Path, layer: bytes, commands: dict[str, list[str]]) -> None:
    """Docker's archive format; all images share one layer."""
    name = hashlib.sha256(layer).hexdigest()
    members = {f"{name}/layer.tar": layer}
    index = []
    for image, command in commands.items():
        settings = {"Cmd": command, "Env": ["PATH=/usr/bin:/bin", "PYTHONUNBUFFERED=1"]}
        described = {"architecture": "amd64", "os": "linux", "config": settings, "history": [{}]}
        described["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{name}"]}
        config = json.dumps(described).encode()
        members[config_name := f"{hashlib.sha256(config).hexdigest()}.json"] = config
        index.append({"Config": config_name, "RepoTags": [image], "Layers": [f"{name}/layer.tar"]})
    members["manifest.json"] = json.dumps(index).encode()
    _write_tar(path, members.items())


def _write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            _add(archive, name, content)
