"""Which node a cluster's or a scheduler's text is about, where its lines don't say it themselves. Feeds ``findings``.

`kubectl describe node` and a pod's `Node:` name it at the head; a table of jobs has a column for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

NODE = re.compile(r"^\s*Node:\s+(?P<node>[\w.-]+)")
_NAME = re.compile(r"^Name:\s+(?P<node>[\w.-]+)")
_KUBELET = re.compile(r"\bkubelet, (?P<node>[\w.-]+)")
_NODE_WORD = re.compile(r"(?<=\s)(?:node|gpu|ip|gke|aks|worker|compute|dgx|hgx)[\w.-]*\d[\w.-]*(?=\s)")
_NODE_COLUMN = re.compile(r"\bNODELIST\b|\bNodeList\b")
_WORD = re.compile(r"\S+")


def described_node(lines: Sequence[str]) -> str | None:
    """Return the node that a cluster's text is about first: `describe node` names it at its head."""
    about_node = any(line.startswith(("Taints:", "Unschedulable:")) for line in lines)
    about_pod = any(line.startswith(("Node:", "Namespace:", "Containers:", "Status:")) for line in lines)
    about_node = about_node or (not about_pod and any(line.startswith("Conditions:") for line in lines))
    for line in lines:
        found = NODE.match(line) or _KUBELET.search(line) or (_NAME.match(line) if about_node else None)
        if found is not None:
            return str(found["node"])
    words = Counter(word for line in lines for word in set(_NODE_WORD.findall(line)))
    return next((word for word, times in words.most_common(1) if times * 2 > len(lines)), None)


def node_column(lines: Sequence[str]) -> str | None:
    """Return the one node that a scheduler's table names in its column of nodes."""
    head = next((line for line in lines if _NODE_COLUMN.search(line)), None)
    if head is None:
        return None
    title = _NODE_COLUMN.search(head)
    assert title is not None
    if not head[title.end() :].strip():  # the last column may be longer than its title
        named = {line.split()[-1] for line in lines if line.strip() and line is not head}
    else:
        at = title.end() - 1
        named = {word[0] for line in lines for word in _WORD.finditer(line) if word.start() <= at < word.end()}
    nodes = {word for word in named - {title[0]} if any(letter.isdigit() for letter in word)}
    return nodes.pop() if len(nodes) == 1 else None
