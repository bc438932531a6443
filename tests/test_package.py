"""The package as users and Airflow get it: entry points, metadata, what is in the wheel."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from airflow_ft.get_provider_info import get_provider_info

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "airflow_ft").rglob("*.py"))


def test_airflow_finds_the_provider_and_the_plugin() -> None:
    """Both entry points exist and load."""
    (provider,) = [e for e in entry_points(group="apache_airflow_provider") if e.value.startswith("airflow_ft.")]
    (plugin,) = [e for e in entry_points(group="airflow.plugins") if e.value.startswith("airflow_ft.")]
    assert provider.load()()["package-name"] == "airflow-ft"
    assert plugin.load().name == "airflow_ft"


def test_everything_that_the_provider_names_exists() -> None:
    """Modules, classes and functions in get_provider_info can be imported."""
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    for path in [*info["extra-links"], *info["cli"]]:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name)


def test_every_config_option_is_described() -> None:
    """Each option has description, type, default, example and the version it came with."""
    for option in get_provider_info()["config"]["fault_tolerance"]["options"].values():
        assert {"description", "type", "default", "example", "version_added"} <= option.keys()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for_and_has_one_idea(path: Path) -> None:
    """A docstring, and at most 400 lines."""
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert text.count("\n") <= 400


def test_the_wheel_has_the_signatures_and_the_agent_and_no_tests(tmp_path: Path) -> None:
    """What is data in the package is in the wheel."""
    command = [
        str(Path(sys.executable).parent / "uv"),
        "build",
        "--wheel",
        "--offline",
        "--out-dir",
        str(tmp_path),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode and "hatchling" in done.stderr:
        command.remove("--offline")
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.startswith("airflow_ft/core/signatures/") and name.endswith(".yaml")]
    assert "airflow_ft/agent/sitecustomize/sitecustomize.py" in names
    assert not [name for name in names if name.startswith(("tests", "demo", "benchmarks"))]


def test_the_plugin_module_imports_nothing_heavy() -> None:
    """Every component of Airflow imports the plugin at its start: no FastAPI application, no ORM, no pydantic model."""
    code = (
        "import sys, airflow.plugins_manager; before = set(sys.modules);"
        "import airflow_ft.plugins.fault_tolerance; print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    ours = {"airflow_ft", "airflow_ft.plugins", "airflow_ft.plugins.fault_tolerance", "airflow_ft.plugins.pages"}
    # How backends get Airflow's connections: small modules that import nothing themselves.
    ours |= {f"airflow_ft.{name}" for name in ("hooks", "hooks.connections", "backends", "backends.connections")}
    airflows = {"airflow.listeners", "airflow._shared.listeners"}  # two small modules for one decorator
    assert set(done.stdout.split("\n")[-2].split()) <= ours | airflows
