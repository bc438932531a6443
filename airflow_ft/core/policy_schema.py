"""The JSON schema of policy files: for editors, which then complete and check them while they are written.

Made from the models. What the validators take beyond them (a rung as a word, ``preset``) is added here, and what an
editor can't know (whether a fault class has a typo) is closed. ``airflow-ft policy schema`` prints it,
``docs/policy.schema.json`` is its copy.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_ft.core.decisions import Action
from airflow_ft.core.ladder import CONDITIONS
from airflow_ft.core.policy import PRESETS, FaultTolerancePolicy
from airflow_ft.core.user_rules import ACTIONS

PARAM = re.compile(r":param (\w+): (.*?)(?=\n\s*:param |\Z)", re.DOTALL)


def policy_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema, draft 2020-12)."""
    schema = FaultTolerancePolicy.model_json_schema()
    models = schema["$defs"]
    for model in (schema, *models.values()):
        _describe(model)
    actions = [action.value for action in Action]
    models["Rung"]["properties"]["when"]["items"] = {"enum": sorted(CONDITIONS)}
    models["UserRule"]["properties"]["action"]["enum"] = list(ACTIONS)
    rung = {"anyOf": [{"enum": actions}, {"$ref": "#/$defs/Rung"}]}
    for field in ("ladder", "signature_ladders"):
        schema["properties"][field]["additionalProperties"] = {"type": "array", "minItems": 1, "items": rung}
    schema["properties"]["preset"] = {
        "enum": list(PRESETS),
        "description": "A preset that the other fields change. Only in files.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Fault tolerance policy",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _describe(model: dict[str, Any]) -> None:
    """Move what a class's docstring says of its fields to the fields, with what is allowed."""
    text = model.get("description", "")
    said = {name: " ".join(words.split()) for name, words in PARAM.findall(text)}
    model["description"] = " ".join(text.partition("\n\n")[0].split())
    for name, field in model.get("properties", {}).items():
        field.pop("title", None)
        parts = [said.get(name, ""), field.pop("allowed", "")]
        if words := " ".join(part for part in parts if part):
            field["description"] = words
