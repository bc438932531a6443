from __future__ import annotations

import pytest

from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass
from airflow_ft.diagnosis.redaction import redact, redacted

CANARY = "Zx9Qw7Er5Ty3Ui1Op0Lk"


@pytest.mark.story("SEC-02")
@pytest.mark.parametrize(
    "text",
    [
        f"using hf_{CANARY}{CANARY[:10]} for download",
        f"HF_TOKEN={CANARY}",
        f"export WANDB_API_KEY='{CANARY}'",
        f'{{"password": "{CANARY}", "user": "bob"}}',
        f"aws_secret_access_key = {CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"postgresql://bob:{CANARY}@db:5432/x",
        f"token={CANARY}",
        f"--api-key={CANARY}",
        f"train.py --hf-token {CANARY} --steps 5",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"github_pat_{CANARY}{CANARY}{CANARY}",
        f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.{CANARY}",
    ],
)
def test_secrets_are_taken_out(text: str) -> None:
    clean = redact(text)
    assert CANARY not in clean
    assert "***" in clean


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]:[titan] step: 1,240  loss:  3.0127  tps: 8,812  tokens: 1.2T",
        "tokens_per_second=123.4 num_tokens=4096 max_tokens: 100",
        "pad_token='<pad>' eos_token: </s> tokenizer=gpt2 token_type_ids: [0, 0]",
        "KeyError: 'attention_mask'",
        "train.py --max-tokens 1000000 --tokenizer gpt2-medium",
        "token: 12345678",
        "key: value_of_a_dictionary",
        "sha256=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "password: None",
        "http://127.0.0.1:29500/store",
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:37285.",
        "error_file: <N/A> exitcode  : -9 (pid: 29563)",
    ],
)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_known_values_go_first_and_short_ones_are_left() -> None:
    assert redact("my secret is swordfish and a", ["swordfish", "a"]) == "my secret is *** and a"


def test_a_whole_record_is_redacted() -> None:
    root = Evidence(source="n1/output", text=f"HF_TOKEN={CANARY}", code=1)
    diagnosis = Diagnosis(fault_class=FaultClass.APP_ERROR, text="swordfish", root=root, evidence=(root,))
    clean = redacted(diagnosis, ["swordfish"])
    assert CANARY not in clean.model_dump_json()
    assert (clean.text, clean.fault_class, clean.root and clean.root.code) == ("***", FaultClass.APP_ERROR, 1)
