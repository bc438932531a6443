from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft.core.rules import SignatureError
from airflow_ft.diagnosis.signature_files import load_rules, load_signatures

MINE = """
signatures:
  - {id: mine.a, pattern: 'out of luck', role: root, fault_class: ENV_ERROR, confidence: 0.5,
     says: had no luck, advice: Try.}
"""


def test_the_packages_own_files_are_read_once() -> None:
    assert len(load_signatures()) > 40
    assert load_rules() is load_rules()


@pytest.mark.row("P3")
def test_a_users_folder_is_added_and_asked_first(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    rules = load_rules([tmp_path])
    assert rules.signatures[0].id == "mine.a"
    assert rules.signatures[0].user


def test_every_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("signatures: [")
    (tmp_path / "b.yaml").write_text("signatures: []")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SignatureError) as error:
        load_rules([tmp_path, tmp_path / "empty", tmp_path / "absent.yaml"])
    for name in ("a.yaml: no YAML", "b.yaml: no entries", "empty: a folder without", "absent.yaml: can't be read"):
        assert name in str(error.value)
