"""From a connection to a configuration of the client: kubeconfig (text, path, default), in-cluster, token.

The fields are those of a connection of the provider cncf-kubernetes, so that one connection serves both. Tokens are
renewed by loading all of it again: exec plugins are asked, files read anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration

from airflow_ft.backends import connections
from airflow_ft.backends.base import SubmissionRefusedError

PREFIX = "extra__kubernetes__"  # older connections have it before each field


async def configuration(conn_id: str) -> tuple[Configuration, str | None]:
    """Return the client's configuration and the connection's namespace.

    Raises ``SubmissionRefusedError`` for a connection that can't be used.
    """
    try:
        values = await connections.resolve(conn_id)
    except connections.UnknownConnectionError as error:
        raise SubmissionRefusedError(f"conn_id: {error}") from error
    extra = {key.removeprefix(PREFIX): value for key, value in values.extra.items() if value not in (None, "")}
    try:
        found = await _loaded(extra)
    except (config.ConfigException, yaml.YAMLError, json.JSONDecodeError, OSError) as error:
        raise SubmissionRefusedError(
            f"conn_id: {conn_id!r} can't be used: {error}. Give it kube_config, kube_config_path or in_cluster."
        ) from error
    if _is_true(extra.get("disable_verify_ssl")):
        found.verify_ssl = False
    namespace = extra.get("namespace")
    return found, str(namespace) if namespace else None


async def _loaded(extra: Mapping[str, Any]) -> Configuration:
    found = Configuration()
    context = extra.get("cluster_context")
    if _is_true(extra.get("in_cluster")):
        config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    elif extra.get("kube_config"):
        given = extra["kube_config"]
        document = yaml.safe_load(given) if isinstance(given, str) else given
        await config.load_kube_config_from_dict(document, context=context, client_configuration=found)
    else:
        path = extra.get("kube_config_path")
        try:
            await config.load_kube_config(config_file=path, context=context, client_configuration=found)
        except config.ConfigException:
            if path:
                raise
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    return found


def _is_true(value: object) -> bool:
    return value is True or str(value).lower() in ("true", "1", "yes")
