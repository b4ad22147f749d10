"""The scripts that show a finding with torch and vLLM alone, as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from backend_caps_vllm.kit import ADAPTED, VLLM_CHECKS, checks, scripts

from backend_caps.capability.declaration import Declaration
from backend_caps.capability.sets import OneOf
from backend_caps.kit import Case, Effort, Fault, Finding, Forward, KitError, Scenario, Subject
from backend_caps.kit.issue import MOST_LINES

PLAIN = ["FlexAttentionBackend", "TritonAttentionBackend", "TritonAttentionDiffKVBackend"]
_WIDEST = 100
DECODE = Scenario(forward=Forward.DECODE, page_size=16)
VERIFY = Scenario(forward=Forward.VERIFY, page_size=16)


@pytest.fixture(autouse=True)
def _absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write scripts without a vLLM."""
    monkeypatch.setattr(scripts, "load_vllm", lambda: SimpleNamespace(version="0"))
    monkeypatch.setattr(checks, "class_of", lambda _declaration: _Trimming)


class _Trimming:
    """A class that says that it trims drafts."""

    @staticmethod
    def supports_device_cpu_query_lens_mismatch() -> bool:
        return True

    @staticmethod
    def get_builder_cls() -> SimpleNamespace:
        level = SimpleNamespace(name="ALWAYS")
        return SimpleNamespace(get_cudagraph_support=lambda *_: level)


def _subject(name: str) -> Subject:
    tried = {"page_sizes": OneOf(frozenset({16})), "dtypes": frozenset({"float32", "bfloat16"})}
    capabilities = ADAPTED[name].tried.model_copy(update=tried)
    declaration = Declaration(capabilities=capabilities, implementation="x:Y")
    return Subject(name=name, declaration=declaration, takes=ADAPTED[name].takes)


def _text(name: str, case: Case) -> str:
    finding = Finding(subject=name, claims=(), case=case, fault=Fault(what="wrong"))
    return scripts.script_of(_subject(name), finding).text


def _texts(name: str) -> Iterator[str]:
    """Write the scripts of all cases that have one."""
    subject = _subject(name)
    for check in VLLM_CHECKS:
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

    assert len(written) > 20
    for text in written:
        compile(text, "script.py", "exec")
        lines = text.splitlines()
        assert len(lines) <= MOST_LINES, text
        assert max(map(len, lines)) <= _WIDEST, text


def test_window_counts_the_token_itself() -> None:
    """As vLLM's do: of a window of 5, a token sees itself and the 4 before it."""
    text = _text("TritonAttentionBackend", Case(check="sliding-window", scenario=DECODE))

    assert "sliding_window=5" in text
    assert ".tril(-5)" in text


def test_trimmed_drafts_are_spread_on_the_host() -> None:
    """The builder has one distribution of the tokens on the device, and another on the host."""
    text = _text("FlexAttentionBackend", Case(check="trimmed-drafts", scenario=VERIFY))

    assert "query_start_loc_cpu=starts_on_host" in text
    assert "max_query_len=max(ON_HOST)" in text


def test_latent_attention_has_a_script_of_its_requests() -> None:
    """What decides over the kernel of a request is called, with a request alone and beside one."""
    case = Case(check="batch-invariance", scenario=DECODE)

    text = _text("TritonMLABackend", case)

    compile(text, "script.py", "exec")
    assert "split_decodes_and_prefills" in text


@pytest.mark.parametrize("name", ["BailingLinearAttentionBackend", "LinearAttentionBackend"])
@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("linear-states", "lightning_attention(q, k, v, slopes)"),
        ("linear-states-short-prompts", "metadata.num_prefills == 1"),
    ],
)
def test_linear_attention_has_scripts_of_its_parts(name: str, check: str, words: str) -> None:
    """Its kernel is called beside the recurrence, and its builder with a new request."""
    text = _text(name, Case(check=check, scenario=Scenario(forward=Forward.CHUNK)))

    compile(text, "script.py", "exec")
    assert words in text


@pytest.mark.parametrize(
    ("check", "forward", "called"),
    [
        ("linear-states", Forward.CHUNK, "lightning_attention(q, k, v, slopes)"),
        ("linear-states-short-prompts", Forward.PREFILL, "metadata.num_prefills == 1"),
        ("linear-states-graphs", Forward.VERIFY, "get_extra_attn_kwargs(builder, 2)"),
        ("linear-states-waits", Forward.DECODE, "bailing_linear_attn as layer"),
    ],
)
def test_lightning_attention_has_scripts_of_what_its_layers_call(
    check: str, forward: Forward, called: str
) -> None:
    """The kernel, the builder, the runner's word to it, and the clearing of states, each alone."""
    case = Case(check=check, scenario=Scenario(forward=forward))

    text = _text("BailingLinearAttentionBackend", case)

    compile(text, "script.py", "exec")
    assert called in text
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    ("name", "case", "why"),
    [
        ("TritonAttentionBackend", Case(check="races", scenario=DECODE), "more than an eager"),
        ("TritonMLABackend", Case(check="numerics", scenario=DECODE), "no class of plain"),
        ("LinearAttentionBackend", Case(check="linear-states", scenario=DECODE), "more than an"),
        (
            "TritonAttentionBackend",
            Case(check="numerics", scenario=Scenario(forward=Forward.TREE)),
            "trees",
        ),
    ],
)
def test_reason_is_given_where_there_is_no_script(name: str, case: Case, why: str) -> None:
    """Races, latents and trees are more than a script has room for."""
    with pytest.raises(KitError, match=why):
        _text(name, case)
