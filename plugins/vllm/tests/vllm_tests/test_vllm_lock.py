"""What differs between a server and the file that is configured as its lock."""

from __future__ import annotations

from pathlib import Path

import pytest
from backend_caps_vllm.lock import lock_differences

from backend_caps import Facts, RuleSet, ServerFlags, discover, resolve
from backend_caps.report.launches import LaunchDocument, LayerGraphsDocument, LayerGroupDocument
from backend_caps.report.lock import LockedRequest, LockError, lock_document
from backend_caps.report.plans import plan_document
from backend_caps.resolution.plan import Policy

from .test_vllm_start import HONEST, declare

GROUP = LayerGroupDocument(
    role="target",
    layer="Attention",
    num_layers=2,
    backend="FLASH_ATTN",
    path="vllm.Flash",
    graph_support="ALWAYS",
    cache="FullAttentionSpec",
    sizes={"block_size": 16},
)
GRAPHS = LayerGraphsDocument(asked="FULL", mode="FULL", support="ALWAYS", by=None, words=[])
SERVER = LaunchDocument(
    engine="vllm-0.33.0",
    machine="H100",
    model="tiny",
    starts=True,
    refusal=None,
    unchecked=[],
    rewrites=[],
    flags={"disable_overlap_schedule": False},
    classes={},
    layers=(GROUP,),
    graphs=GRAPHS,
)
"""What a server ended with."""
OTHER = GROUP.model_copy(update={"backend": "TRITON_ATTN", "path": "vllm.Triton"})
RULES = RuleSet.builtin("sglang-0.5.23")


def lock(folder: Path, launch: LaunchDocument | None) -> Path:
    """Write a lock of what is installed in a folder, and of a plan where there is one."""
    request = LockedRequest(
        flags=ServerFlags(),
        facts=Facts(),
        unsafe_override=None,
        policy=Policy.WARN,
        rules=None,
        engine=None,
    )
    registry = discover(path=[folder])
    plan = None
    if launch is not None:
        flags = ServerFlags(attention_backend="acme")
        resolved = resolve(registry.uses(flags), flags, rules=RULES)
        plan = plan_document(resolved, ()).model_copy(update={"launch": launch})
    file = folder / "server.lock"
    file.write_text(lock_document(request, registry, RULES, plan).text())
    return file


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({}, None, id="the-same"),
        pytest.param({"model": "a/folder", "machine": "H200"}, None, id="no-matter"),
        pytest.param(
            {"engine": "vllm-0.32.0"}, "the engine is vllm-0.33.0 and was vllm-0.32.0", id="engine"
        ),
        pytest.param(
            {"layers": (OTHER,)},
            "plan target Attention is FLASH_ATTN and was TRITON_ATTN",
            id="backend",
        ),
        pytest.param(
            {"graphs": GRAPHS.model_copy(update={"mode": "PIECEWISE"})},
            "plan graphs is FULL and was PIECEWISE",
            id="graphs",
        ),
        pytest.param(
            {"flags": {"disable_overlap_schedule": True}},
            "plan flag disable_overlap_schedule is no and was yes",
            id="flag",
        ),
    ],
)
def test_what_the_engine_takes_is_compared(
    changes: dict[str, object], words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of a plan has what the engine makes of the command line; a server is held to it."""
    declare(tmp_path, HONEST, monkeypatch)
    file = lock(tmp_path, SERVER.model_copy(update=changes))

    found = [*lock_differences(file, SERVER, discover(path=[tmp_path]))]

    said = f"The server is not as {str(file)!r} says: {words}. Start what was locked, or lock it"
    assert found == ([] if words is None else [f"{said} anew."])


@pytest.mark.parametrize(
    ("claims", "differs"),
    [pytest.param(HONEST, False, id="the-same"), pytest.param("", True, id="declares-less")],
)
def test_what_plugins_declare_is_compared(
    claims: str, differs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock without a plan still has what is installed."""
    declare(tmp_path, HONEST, monkeypatch)
    file = lock(tmp_path, None)
    declare(tmp_path, claims, monkeypatch)

    found = " ".join(lock_differences(file, SERVER, discover(path=[tmp_path])))

    assert ("backend acme graph_replay is" in found) is differs


def test_other_file_is_no_lock(tmp_path: Path) -> None:
    """What is none is an error with the file's name."""
    file = tmp_path / "server.lock"
    file.write_text("{}")

    with pytest.raises(LockError, match=r"server\.lock"):
        list(lock_differences(file, SERVER, discover(path=[])))
