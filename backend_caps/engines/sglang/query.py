"""Asks an installed SGLang what it makes of a command line, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.model import in_folders
from backend_caps.engines.query import ask
from backend_caps.engines.reading import LaunchQuery
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch, Refusal, Rewrite, Unchecked

SCRIPT = Path(__file__).with_name("query_script.py")


def ask_launches(python: Path, query: LaunchQuery) -> list[Launch]:
    """Let the SGLang of an environment process command lines; it needs no GPU and no weights.

    Args:
        python: the environment's Python.
        query: the command lines, and the machine, which torch is made to describe.

    Raises:
        EngineError: Python cannot be started, or gives no answer.
    """
    gpu, model = query.gpu, query.model
    with in_folders(query.lines, model) as (around, named, path):
        command_lines = [[*words, "--model-path", path] for words in named]
        answers = ask(python, SCRIPT, command_lines, gpu, query.num_gpus)
    texts = (json.dumps(answer).replace(f"{around}/", "") for answer in answers)
    return [launch_of(json.loads(text), gpu, model.name) for text in texts]


def launch_of(answer: Mapping[str, Any], gpu: Gpu, model: str) -> Launch:
    """Make the launch of an answer."""
    refusal = answer.get("refusal")
    undecided = answer.get("undecided")
    values = answer.get("values", {})
    return Launch(
        engine=f"sglang-{answer.get('version', 'unknown')}",
        machine=gpu.key,
        model=model,
        refusal=None
        if refusal is None
        else Refusal(message=refusal["message"], at=refusal["at"] or "sglang"),
        unchecked=()
        if undecided is None
        else (
            Unchecked(
                message=undecided, at=answer.get("stage", "import sglang"), unless="its environment"
            ),
        ),
        rewrites=tuple(Rewrite(**each) for each in answer.get("rewrites", ())),
        values=values,
        flags=flags_of(values),
        facts=answer.get("facts", {}),
        classes={slot: tuple(paths) for slot, paths in answer.get("classes", {}).items()},
        wrappers=frozenset(answer.get("wrappers", ())),
        joined=frozenset(answer.get("joined", ())),
    )


def flags_of(values: Mapping[str, object]) -> dict[str, object]:
    """List the flags of `ServerFlags` by SGLang's final arguments, where these are known."""
    known = {name: value for name, value in values.items() if not _is_unknown(value)}
    flags = {
        name: value
        for name, value in known.items()
        if name in ServerFlags.model_fields and name != "unrelated" and value is not None
    }
    graphs = known.get("cuda_graph_config")
    if isinstance(graphs, dict):
        phases = [each for each in graphs.values() if isinstance(each, dict)]
        flags["disable_cuda_graph"] = all(each.get("backend") == "disabled" for each in phases)
    width = known.get("attn_dp_size")
    if isinstance(width, int) and width > 1:
        flags["enable_dp_attention"] = True
    return flags


def _is_unknown(value: object) -> bool:
    """Return whether a value, or one in it, is written as not known."""
    if isinstance(value, Mapping):
        return "unknown" in value or any(map(_is_unknown, value.values()))
    return isinstance(value, list) and any(map(_is_unknown, value))
