"""The scripts that show a finding with torch and SGLang alone, as they are written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backend_caps_sglang.kit import SGLANG_CHECKS, scripts
from backend_caps_sglang.kit.classes import ADAPTED

from backend_caps.capability.declaration import Declaration
from backend_caps.kit import Case, Effort, Fault, Finding, Forward, KitError, Scenario, Subject
from backend_caps.kit.issue import MOST_LINES
from backend_caps.simulator import Site

from .small_sglang import small_sglang

PLAIN = ["TorchFlexAttnBackend", "TorchNativeAttnBackend", "TritonAttnBackend"]
_WIDEST = 100
DECODE = Scenario(forward=Forward.DECODE)


@pytest.fixture(autouse=True)
def _absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write scripts without an SGLang."""
    monkeypatch.setattr(scripts, "load_sglang", small_sglang)


def _subject(name: str) -> Subject:
    capabilities = ADAPTED[name].tried.model_copy(update={"roles": {"target"}})
    declaration = Declaration(capabilities=capabilities, implementation="x:Y")
    return Subject(name=name, declaration=declaration, builder=lambda _site: None)  # type: ignore[arg-type,return-value] # it builds nothing


def _text(name: str, case: Case, site: Site | None = None) -> str:
    fault = Fault(what="wrong", site=site)
    finding = Finding(subject=name, claims=(), case=case, fault=fault)
    return scripts.script_of(_subject(name), finding).text


def _texts(name: str) -> Iterator[str]:
    """Write the scripts of all cases that have one."""
    subject = _subject(name)
    for check in SGLANG_CHECKS:
        if check.excuse(subject) is None:
            for case in check.cases(subject, Effort.quick()):
                try:
                    yield _text(name, case)
                except KitError:
                    continue


@pytest.mark.parametrize("name", PLAIN)
def test_scripts_are_short_python(name: str) -> None:
    """Whatever the check and the case, a script compiles and fits on a page."""
    written = {*_texts(name)}

    assert len(written) > 50
    for text in written:
        compile(text, "script.py", "exec")
        lines = text.splitlines()
        assert len(lines) <= MOST_LINES, text
        assert max(map(len, lines)) <= _WIDEST, text


@pytest.mark.parametrize(
    ("name", "forward", "part"),
    [
        ("HybridAttnBackend", Forward.PREFILL, "TorchNativeAttnBackend"),
        ("HybridAttnBackend", Forward.DECODE, "TritonAttnBackend"),
        ("TboAttnBackend", Forward.PREFILL, "TritonAttnBackend"),
    ],
)
def test_script_of_a_pair_is_that_of_the_part_that_runs(
    name: str, forward: Forward, part: str
) -> None:
    """A pair's fault is that of the class which has the forward."""
    text = _text(name, Case(check="numerics", scenario=Scenario(forward=forward)))

    assert f"backend = {part}(runner)" in text


def test_script_says_what_the_layer_has() -> None:
    """Window, cap, sinks and scales are the layer's, and part of what is expected."""
    window = _text("TritonAttnBackend", Case(check="windowed-sinks", scenario=DECODE))
    cap = _text("TorchNativeAttnBackend", Case(check="soft-cap", scenario=DECODE))
    scales = _text("TorchNativeAttnBackend", Case(check="kv-scales", scenario=DECODE))

    assert "sliding_window_size=5" in window
    assert ".tril(-6)" in window
    assert "sinks=sinks" in window
    assert "logit_cap=1.5" in cap
    assert "torch.tanh(scores / 1.5)" in cap
    assert "torch.float8_e4m3fn" in scales


def test_fault_that_raises_needs_no_comparison() -> None:
    """A script ends where the engine raises; a wait is looked for, and nothing compared."""
    raised = _text("TritonAttnBackend", Case(check="numerics", scenario=DECODE), Site("a.py", 1))
    waits = _text("TritonAttnBackend", Case(check="sync-free-prepare", scenario=DECODE))

    assert "assert_close" not in raised + waits
    assert "with NoWaits():\n    backend.init_forward_metadata(batch)\n" in waits


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("LightningAttentionBackend", "linear-states-other-kernels"),
        ("GDNAttnBackend", "linear-states-waits"),
    ],
)
def test_kernels_have_scripts_of_their_own(name: str, check: str) -> None:
    """What a class of linear attention calls is called alone."""
    text = _text(name, Case(check=check, scenario=DECODE))

    compile(text, "script.py", "exec")
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    ("name", "case", "why"),
    [
        ("TritonAttnBackend", Case(check="replay", scenario=DECODE), "more than an eager forward"),
        (
            "TritonAttnBackend",
            Case(check="numerics", scenario=Scenario(forward=Forward.TREE)),
            "trees",
        ),
        (
            "TritonAttnBackend",
            Case(check="latent-attention", scenario=DECODE),
            "more than an eager forward over keys and values",
        ),
        ("GDNAttnBackend", Case(check="numerics", scenario=DECODE), "no class of plain attention"),
    ],
)
def test_reason_is_given_where_there_is_no_script(name: str, case: Case, why: str) -> None:
    """Graphs, trees and states are more than a script has room for."""
    with pytest.raises(KitError, match=why):
        _text(name, case)
