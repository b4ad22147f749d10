from __future__ import annotations

import pickle

import pytest

from backend_caps.capability.status import Problem
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.choice import Candidate
from backend_caps.resolution.errors import (
    AmbiguousFlagError,
    CompositeCycleError,
    FlagsFileError,
    FlagValueError,
    MissingFlagValueError,
    NoFittingBackendError,
    NoFlagsError,
    NoUseError,
    OtherEngineError,
    OverrideError,
    PlanRefusedError,
    PlansDifferError,
    RoleError,
    UnexpandedCompositeError,
    UnfitChoiceError,
    UnknownBackendError,
    UnknownFlagError,
    UnusableBackendError,
    WordsError,
    nearest,
    raise_all,
)
from backend_caps.resolution.rules import UnknownRuleSetError

_NO_CPU = Problem(
    code="device-unsupported", message="It is cpu, not cuda.", remedy="Use cuda.", needed="cuda"
)
_NO_DTYPE = Problem(code="dtype-unsupported", message="It is int8.", remedy="Use another.")
_ERRORS = [
    pytest.param(
        WordsError(given="--tp 2"),
        "the command line is one string, '--tp 2'; expected a list of its words. "
        "Split it with shlex.split.",
        id="WordsError",
    ),
    pytest.param(
        NoFlagsError(kind="dict"),
        "an object of type 'dict' has none of a server's arguments as attributes; expected one "
        "such as SGLang's ServerArgs. Read a mapping with ServerFlags.from_mapping.",
        id="NoFlagsError",
    ),
    pytest.param(
        UnknownFlagError(flag="--page-sizes", meant="--page-size"),
        "--page-sizes is no flag of this engine, and looks like --page-size. "
        "Write --page-size, or leave it out.",
        id="UnknownFlagError",
    ),
    pytest.param(
        OtherEngineError(program="vllm serve", owner="vllm", known="sglang-0.5.23"),
        "'vllm serve' starts vllm, whose flags and routing are not read; expected the flags of "
        "sglang-0.5.23. Write them in place of 'vllm serve' and what follows it; backend-caps "
        "report --engine vllm, without server flags, shows what vllm's backends say.",
        id="OtherEngineError",
    ),
    pytest.param(
        AmbiguousFlagError(flag="--d", candidates=("--device", "--dp-size")),
        "--d could be --device, --dp-size. Write the flag out.",
        id="AmbiguousFlagError",
    ),
    pytest.param(
        FlagValueError(flag="--tp-size", value="'x'", expected="a valid integer"),
        "--tp-size is 'x'; expected a valid integer. Correct the value.",
        id="FlagValueError",
    ),
    pytest.param(
        MissingFlagValueError(flag="--tp-size", expected="a value"),
        "--tp-size has no value; expected a value. Add it after the flag.",
        id="MissingFlagValueError",
    ),
    pytest.param(
        FlagsFileError(path="a.yaml", cause="it holds a list"),
        "flags file 'a.yaml' cannot be read: it holds a list. Expected a YAML or JSON mapping of "
        "flag names to values. Correct the file or its path.",
        id="FlagsFileError",
    ),
    pytest.param(
        UnknownBackendError(
            name="flashinfr",
            flag="--attention-backend",
            declared=("fa3", "flashinfer"),
            meant="flashinfer",
        ),
        "no backend 'flashinfr' is declared (--attention-backend); declared: fa3, flashinfer. "
        "Did you mean 'flashinfer'?",
        id="UnknownBackendError",
    ),
    pytest.param(
        UnusableBackendError(
            name="fa3", flag="--attention-backend", problem="It hangs.", remedy="Repair it."
        ),
        "--attention-backend names a backend that cannot be used: It hangs. Repair it.",
        id="UnusableBackendError",
    ),
    pytest.param(
        CompositeCycleError(cycle=("a", "b", "a")),
        "composite backend 'a' is a part of itself: a -> b -> a. "
        "Take one of these parts out of its declaration.",
        id="CompositeCycleError",
    ),
    pytest.param(
        UnexpandedCompositeError(name="a", parts=("b", "c")),
        "backend 'a' is a composite of b, c and stands in a use unexpanded. "
        "Take uses from registry.uses(flags), or write one for each part.",
        id="UnexpandedCompositeError",
    ),
    pytest.param(
        NoUseError(),
        "no use of a backend was given; a server runs at least one. Take uses from "
        "registry.uses(flags), or write Use(backend=..., role=..., phase=...).",
        id="NoUseError",
    ),
    pytest.param(
        RoleError(backend="fa3", role="draft", slot="--attention-backend", takes=("target",)),
        "backend 'fa3' does not take the role 'draft' (--attention-backend); it takes: target. "
        "Name another backend for that role.",
        id="RoleError",
    ),
    pytest.param(
        NoFittingBackendError(
            flag="--attention-backend",
            rejected=(
                Candidate(name="fa3", reasons=(_NO_CPU, _NO_DTYPE)),
                Candidate(name="mla", reasons=(_NO_CPU,)),
            ),
        ),
        "--attention-backend is auto, and no installed backend fits:\n"
        "  fa3, device-unsupported: It is cpu, not cuda. Use cuda.\n"
        "  fa3, dtype-unsupported: It is int8. Use another.\n"
        "  mla, device-unsupported: It is cpu, not cuda. Use cuda.\n"
        "Install one that does, or change what they do not take; backend-caps select shows each.",
        id="NoFittingBackendError",
    ),
    pytest.param(
        UnfitChoiceError(
            flag="--attention-backend", name="fa3", reasons=(_NO_CPU,), fitting=("mla", "triton")
        ),
        "--attention-backend names 'fa3', which cannot run here: device-unsupported: It is cpu, "
        "not cuda. Use cuda. In its place these fit: mla, triton. Name one of them, or auto, or "
        "change what it does not take.",
        id="UnfitChoiceError",
    ),
    pytest.param(
        PlanRefusedError(code="no-part", problem="It has no part.", remedy="Name one."),
        "It has no part. Name one.",
        id="PlanRefusedError",
    ),
    pytest.param(
        OverrideError(name="roles", value="target", expected="another"),
        "unsafe_override roles=target cannot be applied; expected another. "
        "Correct its name or value.",
        id="OverrideError",
    ),
    pytest.param(
        PlansDifferError(field="rules", one="a", other="b"),
        "plans with rules 'a' and 'b' cannot be joined; expected the same on every rank. "
        "Resolve both under one of them.",
        id="PlansDifferError",
    ),
    pytest.param(
        UnknownRuleSetError(name="x", known=("a", "b")),
        "no rule set 'x' is known; known: a, b. Name one of them, or make a RuleSet of your own.",
        id="UnknownRuleSetError",
    ),
]


@pytest.mark.parametrize(("error", "text"), _ERRORS)
def test_error_is_a_sentence_from_its_fields(error: BackendCapsError, text: str) -> None:
    """What is wrong with its values, what was expected, what to do."""
    written = str(error)

    assert written == text


@pytest.mark.parametrize(("error", "text"), _ERRORS)
def test_error_survives_pickling(error: BackendCapsError, text: str) -> None:
    """An error crosses into another process with its type, its fields and its text."""
    carried = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (type(carried), vars(carried), str(carried)) == (type(error), vars(error), text)


def test_errors_are_all_here() -> None:
    """Every error of this folder is in the table above."""
    ours = {
        kind.__name__
        for kind in BackendCapsError.__subclasses__()
        if kind.__module__.startswith("backend_caps.resolution.")
    }

    assert ours == {str(row.id) for row in _ERRORS}


def test_error_without_a_message_is_our_own_fault() -> None:
    """A class of errors that forgot its sentence fails loudly."""
    error = BackendCapsError()

    with pytest.raises(AssertionError, match=r"^BackendCapsError has no message$"):
        str(error)


def test_errors_are_told_apart_by_identity() -> None:
    """Two errors of equal fields are two errors, as exceptions are."""
    twins = [MissingFlagValueError(flag="--tp-size", expected="a value") for _ in range(2)]

    assert twins[0] != twins[1]


@pytest.mark.parametrize(
    ("name", "cutoff", "meant"),
    [
        pytest.param("tritn", 0.8, "triton", id="near"),
        pytest.param("xformers", 0.8, None, id="far"),
        pytest.param("xformers", 0.0, "flashinfer", id="the nearest, however far"),
    ],
)
def test_nearest_is_the_name_that_was_probably_meant(
    name: str, cutoff: float, meant: str | None
) -> None:
    """Of the known names the nearest is suggested, if it is near enough."""
    known = ["triton", "fa3", "flashinfer"]

    actual = nearest(name, known, cutoff=cutoff)

    assert actual == meant


def test_nearest_does_not_depend_on_the_order() -> None:
    """Of two names that are equally near, always the same is suggested."""
    known = ["fa2", "fa4", "fa3"]

    meant = {nearest("fa", order, cutoff=0.1) for order in (known, sorted(known))}

    assert len(meant) == 1


def test_raise_all_of_nothing_raises_nothing() -> None:
    """No fault is no error."""
    raise_all("flags", [])


def test_raise_all_of_one_raises_it() -> None:
    """One fault is raised as it is."""
    fault = NoUseError()

    with pytest.raises(NoUseError) as raised:
        raise_all("flags", [fault])

    assert raised.value is fault


def test_raise_all_of_several_raises_a_group() -> None:
    """Several faults are raised together."""
    faults = [NoUseError(), MissingFlagValueError(flag="--tp-size", expected="a value")]

    with pytest.raises(ExceptionGroup) as raised:
        raise_all("flags", faults)

    assert (raised.value.message, list(raised.value.exceptions)) == ("flags: 2 faults", faults)
