from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.declaration import Part
from backend_caps.capability.facts import Facts
from backend_caps.capability.kind import Role, Scope
from backend_caps.capability.provenance import Problem
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities
from backend_caps.errors import BackendCapsError, CodedError
from backend_caps.resolution.errors import (
    FlagsError,
    FlagValueError,
    PlanRefusedError,
    ResolutionError,
    nearest,
)
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.selection import check_named, select
from backend_caps.resolution.uses import Use, uses_of
from tests.unit.building import RULES_13, RULES_23, broken, flags, installed, named, use

_HELD = ", ".join(name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE)
_ON_CPU = Facts(device="cpu", dtype="float32")
_TORN = Problem(code="broken", message="It hangs.", remedy="Repair it.")
_CUDA = Capabilities(devices={"cuda"})
_ONLY_CUDA = named(installed("fa3", Capabilities(devices={"cuda"}, dtypes={"int8"})))
_NONE_FILE = Path(__file__).parent / "none.yaml"


def _uses(line: str, *backends: Backend) -> Callable[[], object]:
    return lambda: uses_of(flags(line), named(*backends))


def _composite_by_hand() -> object:
    whole = installed("a", parts=[Part("b"), Part("c")])
    hand = use("a")
    return resolve(
        [Use(backend="a", role=hand.role, phase=hand.phase, declaration=whole.declaration)], flags()
    )


_OCCASIONS = [
    pytest.param(
        lambda: ServerFlags.from_argv("--tp 2"),
        "the command line is one string, '--tp 2'; expected a list of its words. "
        "Split it with shlex.split.",
        id="one-string",
    ),
    pytest.param(
        lambda: ServerFlags.from_object({}),
        "an object of type 'dict' has none of a server's arguments as attributes; expected one "
        "such as SGLang's ServerArgs. Read a mapping with ServerFlags.from_mapping.",
        id="no-arguments",
    ),
    pytest.param(
        lambda: flags("--page-sizes 2"),
        "--page-sizes is no flag of this engine, and looks like --page-size. "
        "Write --page-size, or leave it out.",
        id="unknown-flag",
    ),
    pytest.param(
        lambda: flags("vllm serve"),
        "'vllm serve' starts vllm, whose flags and routing are not read; expected the flags of "
        "sglang-0.5.23. Write them in place of 'vllm serve' and what follows it; backend-caps "
        "report --engine vllm, without server flags, shows what vllm's backends say.",
        id="other-engine",
    ),
    pytest.param(
        lambda: flags("--attention fa3"),
        "--attention could be --attention-backend, --attention-context-parallel-size, "
        "--attention-data-parallel-size. Write the flag out.",
        id="ambiguous-flag",
    ),
    pytest.param(
        lambda: flags("--tp-size"),
        "--tp-size has no value; expected a value. Add it after the flag.",
        id="missing-value",
    ),
    pytest.param(
        lambda: ServerFlags.from_file(_NONE_FILE),
        f"flags file '{_NONE_FILE}' cannot be read: [Errno 2] No such "
        f"file or directory: '{_NONE_FILE}'. Expected a YAML or JSON "
        "mapping of flag names to values. Correct the file or its path.",
        id="flags-file",
    ),
    pytest.param(
        _uses("--attention-backend flashinfr", installed("fa3"), installed("flashinfer")),
        "no backend 'flashinfr' is declared (--attention-backend); declared: fa3, flashinfer. "
        "Did you mean 'flashinfer'?",
        id="unknown-backend",
    ),
    pytest.param(
        _uses("--attention-backend fa3", broken("fa3", Status.BROKEN, [_TORN])),
        "--attention-backend names a backend that cannot be used: It hangs. Repair it.",
        id="broken-backend",
    ),
    pytest.param(
        _uses(
            "--attention-backend a",
            installed("a", parts=[Part("b")]),
            installed("b", parts=[Part("a")]),
        ),
        "composite backend 'a' is a part of itself: a -> b -> a. "
        "Take one of these parts out of its declaration.",
        id="composite-cycle",
    ),
    pytest.param(
        _composite_by_hand,
        "backend 'a' is a composite of b, c and stands in a use unexpanded. "
        "Take uses from registry.uses(flags), or write one for each part.",
        id="unexpanded-composite",
    ),
    pytest.param(
        lambda: resolve(flags(), [use()]),  # type: ignore[arg-type]
        "resolve() is given ServerFlags as its uses; expected the uses first and the flags "
        "second. Write resolve(uses, flags).",
        id="arguments-swapped",
    ),
    pytest.param(
        lambda: resolve([], flags()),
        "no use of a backend was given; a server runs at least one. Take uses from "
        "registry.uses(flags), or write Use(backend=..., role=..., phase=...).",
        id="no-use",
    ),
    pytest.param(
        lambda: resolve([use("fa3", Capabilities(roles={Role.TARGET}), role=Role.DRAFT)], flags()),
        "backend 'fa3' does not take the role 'draft' (by hand); it takes: target. "
        "Name another backend for that role.",
        id="role",
    ),
    pytest.param(
        lambda: select(_ONLY_CUDA, flags("--attention-backend auto"), facts=_ON_CPU).uses(
            _ONLY_CUDA
        ),
        "--attention-backend is auto, and no installed backend fits:\n"
        "  fa3, device-unsupported: backend 'fa3' takes device cuda; here it is cpu. Use another "
        "backend, or device cuda.\n"
        "  fa3, dtype-unsupported: backend 'fa3' takes dtype int8; here it is float32. Use "
        "another backend, or dtype int8.\n"
        "Install one that does, or change what they do not take; backend-caps select shows each.",
        id="no-backend-fits",
    ),
    pytest.param(
        lambda: check_named(
            resolve([use("fa3", _CUDA)], flags(), facts=_ON_CPU),
            named(installed("b")),
            but=frozenset(),
        ),
        "by hand names 'fa3', which cannot run here: device-unsupported: backend 'fa3' takes "
        "device cuda; here it is cpu. Use another backend, or device cuda. In its place no "
        "installed backend fits. Install one that does, or change what it does not take.",
        id="unfit-backend",
    ),
    pytest.param(
        lambda: resolve([use()], flags(), unsafe_override=Capabilities(max_context_len_known=True)),
        "unsafe_override max_context_len_known=yes cannot be applied; expected a capability that a "
        f"plan holds: {_HELD}. Correct its name or value.",
        id="override",
    ),
    pytest.param(
        lambda: resolve([use()], flags(), rules=RULES_13).join(
            resolve([use()], flags(), rules=RULES_23)
        ),
        "plans with rules 'sglang-0.5.13' and 'sglang-0.5.23' cannot be joined; expected the same "
        "on every rank. Resolve both under one of them.",
        id="plans-differ",
    ),
    pytest.param(
        lambda: RuleSet.builtin("x"),
        "no rule set 'x' is known; known: backend-caps-1, sglang-0.5.13, sglang-0.5.23. Name one "
        "of them, or make a RuleSet of your own.",
        id="unknown-rules",
    ),
]
_WITH_FIELDS = [
    pytest.param(
        FlagValueError(flag="--tp-size", value="'x'", expected="a valid integer"),
        "--tp-size is 'x'; expected a valid integer. Correct the value.",
        id="FlagValueError",
    ),
    pytest.param(
        PlanRefusedError(code="no-part", problem="It has no part.", remedy="Name one."),
        "It has no part. Name one.",
        id="PlanRefusedError",
    ),
]


@pytest.mark.parametrize(("provoke", "text"), _OCCASIONS)
def test_coded_error_is_a_sentence(
    provoke: Callable[[], object], text: str, request: pytest.FixtureRequest
) -> None:
    """Each code comes with what is wrong, what was expected and what to do."""
    with pytest.raises(CodedError) as raised:
        provoke()

    assert (raised.value.code, str(raised.value)) == (request.node.callspec.id, text)


def test_coded_errors_are_all_here() -> None:
    """Every code of this folder has an occasion above."""
    codes = {*FlagsError.codes, *ResolutionError.codes}

    assert codes == {str(row.id) for row in _OCCASIONS}


@pytest.mark.parametrize(("error", "text"), _WITH_FIELDS)
def test_error_is_a_sentence_from_its_fields(error: BackendCapsError, text: str) -> None:
    """What is wrong with its values, what was expected, what to do."""
    written = str(error)

    assert written == text


@pytest.mark.parametrize(
    "error", [*(row.values[0] for row in _WITH_FIELDS), ResolutionError("no-use", "None is given.")]
)
def test_error_survives_pickling(error: BackendCapsError) -> None:
    """An error crosses into another process with its type, its fields and its text."""
    carried = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (type(carried), vars(carried), str(carried)) == (type(error), vars(error), str(error))


def test_error_without_a_message_is_our_own_fault() -> None:
    """A class of errors that forgot its sentence fails loudly."""
    error = BackendCapsError()

    with pytest.raises(AssertionError, match=r"^BackendCapsError has no message$"):
        str(error)


def test_errors_are_told_apart_by_identity() -> None:
    """Two errors of equal fields are two errors, as exceptions are."""
    twins = [FlagsError("missing-value", "--tp-size has no value.") for _ in range(2)]

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
