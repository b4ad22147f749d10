from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import pytest
from backend_caps_sglang import decide_needs_cpu_seq_lens, explain_needs_cpu_seq_lens

from backend_caps import Cause, HostSeqLens, Origin, Plan, Role
from tests.unit.building import error_of
from tests.unit.engines.tables import table
from tests.upstream.live_backends import (
    Inherits,
    InheritsNeed,
    InheritsSetter,
    OptsOut,
    Reads,
    Sets,
    Shadows,
    Wraps,
)

_CONTEXT = "sglang.srt.runtime_context"
_LOGGER = "backend_caps_sglang"


class _Undeclared:
    pass


class _OwnProperty:
    max_context_len = 8192

    @property
    def needs_cpu_seq_lens(self) -> bool:
        return False


class _Raises:
    @property
    def needs_cpu_seq_lens(self) -> bool:
        raise RuntimeError("not\nyet")


class _RaisesAttributeError:
    @property
    def needs_cpu_seq_lens(self) -> bool:
        raise AttributeError("no pool")


class _RaisesBound:
    needs_cpu_seq_lens = False

    @property
    def max_context_len(self) -> int:
        raise RuntimeError("not yet")


class _Slotted:
    __slots__ = ("max_context_len", "needs_cpu_seq_lens")

    def __init__(self) -> None:
        self.needs_cpu_seq_lens = False
        self.max_context_len = 8192


class _InheritsSlots(_Slotted):
    __slots__ = ()


def _args(**flags: object) -> SimpleNamespace:
    """Make `ServerArgs` under which no rule forces anything."""
    given = {"enable_two_batch_overlap": False, "disable_piecewise_cuda_graph": True, **flags}
    return SimpleNamespace(**given)


def _set(value: object) -> OptsOut:
    backend = OptsOut()
    vars(backend)["needs_cpu_seq_lens"] = value
    return backend


def _handed() -> SimpleNamespace:
    """Make an object that somebody else gives its opt-out."""
    return SimpleNamespace(needs_cpu_seq_lens=False, max_context_len=8192)


def _published(**flags: object) -> SimpleNamespace:
    """Make a runtime context that has published these flags."""
    overlap = SimpleNamespace(enable_two_batch_overlap=flags.pop("tbo", False))
    spec = SimpleNamespace(**{"speculative_algorithm": None, **flags})
    return SimpleNamespace(get_exec=lambda: SimpleNamespace(overlap=overlap), get_spec=lambda: spec)


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let SGLang's runtime context hold flags."""

    def _publish(**flags: object) -> None:
        monkeypatch.setitem(sys.modules, _CONTEXT, _published(**flags))

    return _publish


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Read what the drop-in has logged, a line each."""
    caplog.set_level(logging.INFO, _LOGGER)
    return lambda: [f"{r.levelname} {r.getMessage()}" for r in caplog.records if r.name == _LOGGER]


def _exact(plan: Plan) -> list[Cause]:
    return [cause for cause in plan["host_seq_lens"].causes if cause.value is HostSeqLens.EXACT]


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(OptsOut(), id="by its class"),
        pytest.param(Sets(), id="by its constructor"),
        pytest.param(_set(value=False), id="on the object, over its class"),
        pytest.param(_OwnProperty(), id="by a property"),
        pytest.param(_Slotted(), id="in a slot"),
        pytest.param(_handed(), id="on the object, from outside"),
    ],
)
def test_stated_opt_out_counts(backend: object) -> None:
    """An opt-out that the object or its own class states is taken."""
    needs = decide_needs_cpu_seq_lens(_args(), (backend, backend, backend))

    assert needs is False


@pytest.mark.parametrize(
    ("backend", "base"),
    [
        pytest.param(InheritsSetter(), "Sets", id="on the object"),
        pytest.param(_InheritsSlots(), "_Slotted", id="in a slot"),
    ],
)
def test_opt_out_that_a_bases_constructor_sets_is_inherited(backend: object, base: str) -> None:
    """A subclass that says nothing has not stated what its base's code gives its objects."""
    plan = explain_needs_cpu_seq_lens(_args(), (backend,))

    (problem,) = plan.problems
    assert plan.needs_cpu_seq_lens is True
    assert problem.code == "live-opt-out-inherited"
    assert f" of {base};" in problem.message


_BACKENDS: Mapping[str, object] = {
    "": None,
    "opts out": OptsOut(),
    "needs None": _set(None),
    "needs 'no'": _set("no"),
    "needs 0": _set(0),
    "bound None": OptsOut(None),
    "bound 0": OptsOut(0),
    "bound True": OptsOut(max_context_len=True),
    "Inherits": Inherits(),
    "InheritsNeed": InheritsNeed(),
    "Reads": Reads(),
    "Wraps(OptsOut)": Wraps(OptsOut()),
    "Wraps(Reads)": Wraps(Reads()),
    "Shadows(OptsOut)": Shadows(OptsOut()),
    "_RaisesBound": _RaisesBound(),
    "_Raises": _Raises(),
    "_RaisesAttributeError": _RaisesAttributeError(),
    "_Undeclared": _Undeclared(),
}
"""What a worker may hand over, by what it has; an empty slot has no name."""


def _decide(names: Sequence[str], **flags: object) -> bool:
    return decide_needs_cpu_seq_lens(_args(**flags), [_BACKENDS[name] for name in names])


@table("sglang_drop_in", "what_nobody_states_is_true_with_one_warning")
def test_what_nobody_states_is_true_with_one_warning(
    lines: Callable[[], list[str]], backends: Sequence[str], warning: str
) -> None:
    """Missing information never opts out, and one line says what is missing and what to do."""
    needs = _decide(backends, speculative_algorithm="EAGLE")

    assert needs is True
    assert [line for line in lines() if line.startswith("WARNING")] == [f"WARNING {warning}"]


@table("sglang_drop_in", "answer_is_one_line")
def test_answer_is_one_line(
    lines: Callable[[], list[str]], backends: Sequence[str], line: str
) -> None:
    """Where SGLang's answer is safe, one line says it and who forced it, and nothing warns."""
    needs = _decide(backends)

    assert needs is line.startswith("needs_cpu_seq_lens=True")
    assert lines() == [f"INFO {line}"]


_FORCED = (
    "needs_cpu_seq_lens=True under sglang-0.5.13, forced by rule 'two-batch-overlap': "
    "each half of the split batch takes its offsets and sums from host lengths "
    "(enable_two_batch_overlap on)"
)


def test_rule_is_named_in_the_answer(lines: Callable[[], list[str]]) -> None:
    """A rule that forces the answer stands in the line, with its reason."""
    needs = decide_needs_cpu_seq_lens(_args(enable_two_batch_overlap=True), (OptsOut(),))

    assert needs
    assert lines() == [f"INFO {_FORCED}"]


def test_mixed_steps_copy_lengths_by_themselves(lines: Callable[[], list[str]]) -> None:
    """With speculation they do in 0.5.23, so the decision is SGLang's own, and the line says so."""
    args = _args(enable_mixed_chunk=True, speculative_algorithm="EAGLE")

    needs = decide_needs_cpu_seq_lens(args, (OptsOut(),), rules="sglang-0.5.23")

    assert needs is False
    assert lines()[-1].endswith(
        "rule 'mixed-chunk-with-speculation': a mixed step copies the lengths of its speculative "
        "rows itself and waits for them, whatever backends need (speculative_algorithm in DFLASH, "
        "DSPARK, EAGLE, EAGLE3 and enable_mixed_chunk on)"
    )


@table("sglang_drop_in", "server_flag_of_another_kind_counts_as_the_worst")
def test_server_flag_of_another_kind_counts_as_the_worst(
    lines: Callable[[], list[str]], flag: str, value: object, warning: str
) -> None:
    """A switch that is no bool counts as what forces the mirror, and a warning says so."""
    needs = decide_needs_cpu_seq_lens(_args(**{flag: value}), (OptsOut(),))

    assert needs
    assert lines()[0] == f"WARNING {warning}"


@table("sglang_drop_in", "empty_draft_slot_is_no_use_where_nothing_drafts")
def test_empty_draft_slot_is_no_use_where_nothing_drafts(steps: object, *, needs: bool) -> None:
    """With one step draft-extend has drafted already, so the empty draft slot is none."""
    args = _args(speculative_algorithm="EAGLE", speculative_num_steps=steps)

    plan = explain_needs_cpu_seq_lens(args, (OptsOut(), None, OptsOut()))

    assert plan.needs_cpu_seq_lens is needs


def test_bound_is_asked_of_the_target_alone() -> None:
    """SGLang sizes the tree mask by the target's bound: a draft without one still opts out."""
    draft = OptsOut(None)

    needs = decide_needs_cpu_seq_lens(_args(), (OptsOut(), draft, draft))

    assert needs is False


@table("sglang_drop_in", "slots_have_roles")
def test_slots_have_roles(count: int, roles: list[str]) -> None:
    """The first slot is the target; of three the others are draft and draft_extend."""
    plan = explain_needs_cpu_seq_lens(_args(), [OptsOut()] * count)

    assert [use.role.value for use in plan.uses] == roles


def test_plan_has_the_origin_and_the_words_of_an_inherited_opt_out() -> None:
    """The cause names the class that states it, and that SGLang takes it as it is."""
    plan = explain_needs_cpu_seq_lens(_args(), (Inherits(),))

    (cause,) = _exact(plan)
    assert (cause.name, cause.role, cause.origin) == ("Inherits", Role.TARGET, Origin.INHERITED)
    assert cause.reason == (
        "inherits needs_cpu_seq_lens = False (SGLang takes it as it is) of OptsOut, "
        "and does not state it again: counts as undeclared"
    )
    assert str(cause.source) == f"{Inherits.__module__}:Inherits"


def test_explanation_logs_nothing(lines: Callable[[], list[str]]) -> None:
    """Only the decision is logged; the plan has the same problems as data."""
    plan = explain_needs_cpu_seq_lens(_args(), ())

    assert lines() == []
    assert [problem.code for problem in plan.problems] == ["live-no-backend"]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda f, a, b: f(a, b), id="by position"),
        pytest.param(lambda f, a, b: f(a, attn_backends=b), id="backends by name"),
        pytest.param(lambda f, a, b: f(server_args=a, attn_backends=b), id="by name"),
        pytest.param(lambda f, a, b: f(a, (each for each in b)), id="of an iterator"),
    ],
)
def test_signature_of_0_5_13_is_taken(call: Callable[..., object]) -> None:
    """The arguments of 0.5.13 are taken in every way that SGLang's function takes them."""
    backends = (OptsOut(),)

    needs = call(decide_needs_cpu_seq_lens, _args(), backends)
    plan = call(explain_needs_cpu_seq_lens, _args(), backends)

    assert needs is False
    assert isinstance(plan, Plan)
    assert plan.rules.name == "sglang-0.5.13"


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda f, b: f(b), id="by position"),
        pytest.param(lambda f, b: f(attn_backends=b), id="by name"),
    ],
)
def test_signature_of_0_5_23_is_taken(
    publish: Callable[..., None], call: Callable[..., object]
) -> None:
    """The one argument of 0.5.23 is taken by position and by name, under its own rules."""
    publish()

    needs = call(decide_needs_cpu_seq_lens, (OptsOut(),))
    plan = call(explain_needs_cpu_seq_lens, (OptsOut(),))

    assert needs is False
    assert isinstance(plan, Plan)
    assert plan.rules.name == "sglang-0.5.23"


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        pytest.param({"tbo": True}, "two-batch-overlap", id="two-batch overlap"),
        pytest.param({"speculative_algorithm": "ngram"}, "ngram", id="ngram, in any case"),
    ],
)
def test_flags_of_the_runtime_context_count(
    publish: Callable[..., None], flags: dict[str, object], rule: str
) -> None:
    """What SGLang's function reads from its runtime context forces the same."""
    publish(**flags)

    plan = explain_needs_cpu_seq_lens((OptsOut(),))

    assert [cause.name for cause in _exact(plan)] == [rule]


def test_steps_of_the_runtime_context_count(publish: Callable[..., None]) -> None:
    """An empty draft slot is no use where the context says that there is one step."""
    publish(speculative_algorithm="EAGLE", speculative_num_steps=1)

    needs = decide_needs_cpu_seq_lens((OptsOut(), None, OptsOut()))

    assert needs is False


def test_rules_are_named_by_the_caller() -> None:
    """0.5.13's arguments under 0.5.23's rules: the piecewise CUDA graph forces nothing."""
    args = _args(disable_piecewise_cuda_graph=False)

    under = [decide_needs_cpu_seq_lens(args, (OptsOut(),), rules=name) for name in _RULE_SETS]

    assert under == [True, True, False]


_RULE_SETS = (None, "sglang-0.5.13", "sglang-0.5.23")


def _unpublished() -> SimpleNamespace:
    raise ValueError("config namespace 'exec' not published")


@pytest.mark.parametrize(
    ("context", "cause"),
    [
        pytest.param(None, f"import of {_CONTEXT} halted; None in sys.modules", id="no SGLang"),
        pytest.param(
            SimpleNamespace(get_exec=_unpublished),
            "config namespace 'exec' not published",
            id="not set up",
        ),
        pytest.param(
            SimpleNamespace(),
            "'types.SimpleNamespace' object has no attribute 'get_exec'",
            id="another version",
        ),
    ],
)
def test_runtime_context_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, context: object, cause: str
) -> None:
    """Without arguments and without a context there are no flags to decide by."""
    monkeypatch.setitem(sys.modules, _CONTEXT, context)

    text = error_of(lambda: decide_needs_cpu_seq_lens((OptsOut(),)))

    assert text == (
        f"{_CONTEXT} cannot be read: {cause}; expected the context of an SGLang 0.5.23 that has "
        "published its flags. Call after that, or give server_args first."
    )


_CALL: Callable[..., object] = decide_needs_cpu_seq_lens
_CALLS: Mapping[str, Callable[[], object]] = {
    "nothing": _CALL,
    "arguments alone": lambda: _CALL(_args()),
    "no sequence": lambda: _CALL(_args(), None),
    "no arguments": lambda: _CALL(None, ()),
    "an algorithm that is no name": lambda: _CALL(_args(speculative_algorithm=7), ()),
    "unknown rules": lambda: _CALL(_args(), (), rules="sglang-0.5"),
}


@table("sglang_drop_in", "wrong_argument_is_an_error")
def test_wrong_argument_is_an_error(call: str, text: str) -> None:
    """What is no argument of either signature is refused in words."""
    actual = error_of(_CALLS[call])

    assert actual == text


def test_no_handler_is_configured() -> None:
    """What is done with the lines is the engine's to say."""
    logger = logging.getLogger(_LOGGER)

    assert (logger.handlers, logger.level) == ([], logging.NOTSET)
