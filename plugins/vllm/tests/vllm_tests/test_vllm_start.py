"""What is said of a server that starts, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from backend_caps_vllm import RefusedStartError, hooks
from backend_caps_vllm.metrics import Served

from .conftest import Logged
from .small_vllm import (
    Attention,
    AttentionMetadataBuilder,
    GraphMode,
    Name,
    Small,
    SmallBuilder,
    Spec,
    Support,
    Worker,
    group,
)

PLAN = """\
the plan of this server:
vllm-0.33.0 starts tiny on cpu

 layers        of       backend   graphs   cache   block   head   window
 ───────────────────────────────────────────────────────────────────────
 1 Attention   target   SMALL     ALWAYS   Spec    16      64

graphs: PIECEWISE, and not FULL
because FULL is not supported, GraphMode.PIECEWISE is taken
async scheduling: on
speculation: eagle3, 3 tokens"""


class Acme(Small):
    """A third party's backend, whose builder states a level of its own."""


class AcmeBuilder(AttentionMetadataBuilder):
    """Its builder."""

    _cudagraph_support = Support.NEVER


Acme.__module__ = AcmeBuilder.__module__ = "acme"
DECLARED = """\
from backend_caps import Capabilities, Declaration, Exact

DECLARATION = Declaration(
    capabilities=Capabilities({claims}),
    adapters={{"vllm": "acme:Acme"}},
)
"""


@pytest.fixture(autouse=True)
def hooked(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - is there
    """A vLLM whose workers are looked at."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.33.0"))
    for name in ("init_device", "initialize_from_config"):
        monkeypatch.setattr(Worker, name, vars(Worker)[name])
    monkeypatch.setattr(hooks, "_HOOKED", set())
    hooks.hook(Worker)


def start(**changes: object) -> Worker:
    """Start a worker of one layer, as an executor does."""
    layers: dict[str, object] = {"a": Attention()}
    worker = Worker(layers, **{"groups": [group("a")], **changes})  # type: ignore[arg-type]
    worker.init_device()
    assert worker.initialize_from_config("cache") == "cache"
    return worker


def of_acme() -> list[object]:
    """List the groups of a server that runs a third party's backend."""
    return [group("a", backend=Acme, builder=AcmeBuilder())]


def declare(folder: Path, claims: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution that declares the backend."""
    files = {
        "acme_caps.py": DECLARED.format(claims=claims),
        "acme-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n",
        "acme-1.0.dist-info/entry_points.txt": (
            "[backend_caps.backends]\nacme = acme_caps:DECLARATION\n"
        ),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("BACKEND_CAPS_PATH", str(folder))


def served_problems(folder: Path) -> list[str]:
    """List the problems that the metrics have."""
    (family,) = (own for own in Served(folder).collect() if own.name.endswith("problem_info"))
    return [sample.labels["problem"] for sample in family.samples]


def test_plan_is_logged_once_the_cache_is_there(served: Path, logged: Logged) -> None:
    """The log has it as `select --engine vllm` prints it, with what lowered the graphs."""
    worker = start(lowers_to=GraphMode.PIECEWISE)

    assert logged() == [("INFO", PLAN)]
    assert (worker.done, served_problems(served)) == (["device", "cache"], [])


def test_second_hook_changes_nothing(logged: Logged) -> None:
    """VLLM may load its plugins more than once."""
    hooks.hook(Worker)

    start()

    assert len(logged()) == 1


def test_plan_is_logged_without_warnings_from_before(logged: Logged) -> None:
    """An executor of another kind may make the device otherwise."""
    layers: dict[str, object] = {"a": Attention()}

    Worker(layers, [group("a")]).initialize_from_config("cache")

    assert "graphs: FULL" in logged()[0][1]


def test_other_workers_of_a_stage_say_nothing(logged: Logged) -> None:
    """Their layers are those of the first."""
    start(rank=1)

    assert logged() == []


NOT_ASKED = (
    "The attention backend CUSTOM (acme.Acme) was asked for, and vLLM's platform took "
    "vllm.small.Small. Name one that the platform takes, or none."
)
TOO_LARGE = (
    "vllm.small.Small states that it does not support the head size 80 of these layers, and "
    "vLLM's platform took it. Name another backend, or serve another model."
)
WRONG = [
    pytest.param({"asked": Name.CUSTOM}, NOT_ASKED, id="asked-for-another"),
    pytest.param({"groups": [group("a", spec=Spec(head_size=80))]}, TOO_LARGE, id="head-size"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_what_is_wrong_is_a_warning(
    changes: dict[str, object], words: str, served: Path, logged: Logged
) -> None:
    """The server starts; the log and the metrics say it."""
    start(**changes)

    assert (logged()[1:], served_problems(served)) == ([("WARNING", words)], [words])


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_what_is_wrong_is_refused_under_strict(
    changes: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker raises, and so the server does not start."""
    monkeypatch.setenv("BACKEND_CAPS_POLICY", "strict")

    with pytest.raises(RefusedStartError) as refused:
        start(**changes)

    assert str(refused.value).startswith(
        f"this server does not start under the policy strict: {words} Mend it, or set"
    )


def test_quiet_says_the_plan_alone(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems are left out where that is asked for."""
    monkeypatch.setenv("BACKEND_CAPS_POLICY", "quiet")

    start(asked=Name.CUSTOM)

    assert [level for level, _ in logged()] == ["INFO"]


HONEST = "graph_replay=set(), head_sizes=Exact(64), page_sizes=Exact(16), devices={'cpu'}"


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        pytest.param(HONEST, [], id="honest"),
        pytest.param(
            "head_sizes=Exact(128)", ["it declares head_size 128, and here it is 64"], id="size"
        ),
        pytest.param(
            "head_sizes={64}", ["does not fit the contract: Capabilities.head_sizes"], id="broken"
        ),
        pytest.param(
            "graph_replay={'single_token_decode'}",
            ["declares graph_replay={single_token_decode}. Correct one of the two."],
            id="graphs",
        ),
    ],
)
def test_third_partys_backend_is_held_to_its_declaration(
    claims: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    """The class that runs, its builder and its layers are held to what is declared of it."""
    declare(tmp_path, claims, monkeypatch)

    start(groups=of_acme())

    lines = [line for level, line in logged() if level == "WARNING"]
    assert [word in line for word, line in zip(words, lines, strict=True)] == [True] * len(words)


def test_declared_backend_that_runs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    """The log says which distribution's declaration the class was held to."""
    declare(tmp_path, HONEST, monkeypatch)

    start(groups=of_acme())

    assert logged()[1:] == [("INFO", "backend 'acme' of acme 1.0 runs as acme.Acme")]


def test_third_partys_backend_without_a_declaration_has_its_class_looked_at(logged: Logged) -> None:
    """What it inherits of vLLM's own builder is reported."""
    inherits = type("Inherits", (SmallBuilder,), {"__module__": "acme"})

    start(groups=[group("a", backend=Acme, builder=inherits())])

    assert "Inherits inherits _cudagraph_support of vllm.small.SmallBuilder" in logged()[1][1]


def test_refused_setting_is_one_line(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts, and the log says what is wrong with the setting."""
    monkeypatch.setenv("BACKEND_CAPS_POLICY", "stern")

    start()

    ((level, line),) = logged()
    assert (level, "BACKEND_CAPS_POLICY" in line) == ("ERROR", True)


def test_unread_worker_is_one_line(logged: Logged) -> None:
    """A release that keeps something elsewhere starts as it would without this."""
    start(groups=[object()])

    ((level, line),) = logged()
    assert (level, line) == (
        "ERROR",
        "backend-caps-vllm could not read the plan; vLLM goes on without it",
    )


def test_unread_worker_is_refused_under_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be checked does not pass there."""
    monkeypatch.setenv("BACKEND_CAPS_POLICY", "strict")

    with pytest.raises(RefusedStartError, match="its plan could not be read \\(AttributeError"):
        start(groups=[object()])
