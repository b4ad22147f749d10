from __future__ import annotations

import pickle
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from backend_caps import Facts, Part, RuleSet, ServerFlags, resolve
from backend_caps.capability.backend import Backend, Status
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
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.selection import check_named, select
from backend_caps.resolution.uses import Use
from tests.unit.building import RULES_13, RULES_23, broken, flags, installed, named, use

_HELD = ", ".join(name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE)
_ON_CPU = Facts(device="cpu", dtype="float32")
_TORN = Problem(code="broken", message="It hangs.", remedy="Repair it.")
_CUDA = Capabilities(devices={"cuda"})
_ONLY_CUDA = named(installed("fa3", Capabilities(devices={"cuda"}, dtypes={"int8"})))
_TEXTS = tomllib.loads((Path(__file__).parent / "errors.toml").read_text("utf-8"))
_NONE_FILE = Path(__file__).parent / "none.yaml"


def _uses(name: str, *backends: Backend) -> Callable[[], object]:
    return lambda: uses_of(flags(f"--attention-backend {name}"), named(*backends))


def _composite_by_hand() -> object:
    whole = installed("a", parts=[Part("b"), Part("c")])
    hand = use("a")
    return resolve(
        [Use(backend="a", role=hand.role, phase=hand.phase, declaration=whole.declaration)], flags()
    )


def _of_versions() -> object:
    one, other = (resolve([use()], flags(), rules=rules) for rules in (RULES_13, RULES_23))
    return one.join(other)


def _unfit() -> None:
    plan = resolve([use("fa3", _CUDA)], flags(), facts=_ON_CPU)
    check_named(plan, named(installed("b")), but=frozenset())


_CIRCLE = [installed("a", parts=[Part("b")]), installed("b", parts=[Part("a")])]
_TARGET_ALONE = use("fa3", Capabilities(roles={Role.TARGET}), role=Role.DRAFT)
_OF_USES = Capabilities(max_context_len_known=True)
_AUTO = flags("--attention-backend auto")
_OCCASIONS: Mapping[str, Callable[[], object]] = {
    "one-string": lambda: ServerFlags.from_argv("--tp 2"),
    "no-arguments": lambda: ServerFlags.from_object({}),
    "unknown-flag": lambda: flags("--page-sizes 2"),
    "other-engine": lambda: flags("vllm serve"),
    "ambiguous-flag": lambda: flags("--attention fa3"),
    "missing-value": lambda: flags("--tp-size"),
    "flags-file": lambda: ServerFlags.from_file(_NONE_FILE),
    "unknown-algorithm": lambda: resolve([use()], flags("--speculative-algorithm EAGEL3")),
    "unknown-backend": _uses("flashinfr", installed("fa3"), installed("flashinfer")),
    "broken-backend": _uses("fa3", broken("fa3", Status.BROKEN, [_TORN])),
    "composite-cycle": _uses("a", *_CIRCLE),
    "unexpanded-composite": _composite_by_hand,
    "arguments-swapped": lambda: resolve(flags(), [use()]),  # type: ignore[arg-type]
    "no-use": lambda: resolve([], flags()),
    "role": lambda: resolve([_TARGET_ALONE], flags()),
    "no-backend-fits": lambda: select(_ONLY_CUDA, _AUTO, facts=_ON_CPU).uses(_ONLY_CUDA),
    "unfit-backend": _unfit,
    "override": lambda: resolve([use()], flags(), unsafe_override=_OF_USES),
    "plans-differ": _of_versions,
    "unknown-rules": lambda: RuleSet.builtin("x"),
}
_WITH_FIELDS = {
    "--tp-size is 'x'; expected a valid integer. Correct the value.": FlagValueError(
        flag="--tp-size", value="'x'", expected="a valid integer"
    ),
    "It has no part. Name one.": PlanRefusedError(
        code="no-part", problem="It has no part.", remedy="Name one."
    ),
    "None is given.": ResolutionError("no-use", "None is given."),
}


@pytest.mark.parametrize("code", _OCCASIONS)
def test_coded_error_is_a_sentence(code: str) -> None:
    """Each code comes with what is wrong, what was expected and what to do."""
    with pytest.raises(CodedError) as raised:
        _OCCASIONS[code]()

    algorithms = ", ".join(sorted(RuleSet.installed().algorithms))
    text = _TEXTS[code].format(file=_NONE_FILE, held=_HELD, algorithms=algorithms)
    assert (raised.value.code, str(raised.value)) == (code, text)


def test_coded_errors_are_all_here() -> None:
    """Every code of this folder has an occasion above."""
    assert {*FlagsError.codes, *ResolutionError.codes} == _OCCASIONS.keys()


@pytest.mark.parametrize("text", _WITH_FIELDS)
def test_error_survives_pickling(text: str) -> None:
    """An error crosses into another process with its type, its fields and its sentence."""
    error = _WITH_FIELDS[text]

    carried = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (type(carried), vars(carried)) == (type(error), vars(error))
    assert str(carried) == str(error) == text


def test_error_without_a_message_is_our_own_fault() -> None:
    """A class of errors that forgot its sentence fails loudly."""
    error = BackendCapsError()

    with pytest.raises(AssertionError, match=r"^BackendCapsError has no message$"):
        str(error)


def test_errors_are_distinguished_by_identity() -> None:
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

    assert nearest(name, known, cutoff=cutoff) == meant


def test_nearest_does_not_depend_on_the_order() -> None:
    """Of two names that are equally near, always the same is suggested."""
    known = ["fa2", "fa4", "fa3"]

    meant = {nearest("fa", order, cutoff=0.1) for order in (known, sorted(known))}

    assert len(meant) == 1
