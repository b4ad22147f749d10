"""backend-caps-sglang, loaded by SGLang's own plugin loader out of the wheel of 0.5.23."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest
from backend_caps_sglang import AdapterError, DecisionTakenError, register
from backend_caps_sglang.registration import VARIABLE
from torch import distributed as dist

from tests.upstream.sglang_liars import LIES, NAME, install_liar
from tests.upstream.sglang_packages import modules, sglang_packages, state_of
from tests.upstream.sglang_worker import load_in_child, scheduler_without_plugin

pytestmark = pytest.mark.upstream

DECISION = "sglang.srt.managers.overlap_utils.decide_needs_cpu_seq_lens"
SHIPPED = "torch_padded"
"""The one of the shipped backends that has an adapter for SGLang."""
DECLARED = """\
from backend_caps import Capabilities, Declaration

DECLARATION = Declaration(
    capabilities=Capabilities({said}), adapters={{"sglang": "acme_backend:make"}}
)
"""
RAISES = "raise RuntimeError('no such GPU')\n"


class _OptsOut:
    needs_cpu_seq_lens = False
    max_context_len = 8192


class _Inherits(_OptsOut):
    pass


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process tells its children, and what is allowed, is of one test."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    monkeypatch.delenv("BACKEND_CAPS_PLUGINS", raising=False)


@pytest.fixture
def sglang() -> Iterator[SimpleNamespace]:
    """SGLang's modules, in a process that has not loaded plugins."""
    with sglang_packages():
        yield modules()


@pytest.fixture
def acme(sglang: SimpleNamespace, tmp_path: Path) -> Path:  # noqa: ARG001 - in its context
    """A folder on the path, for distributions of others; the path is SGLang's, and goes with it."""
    sys.path.insert(0, str(tmp_path))
    invalidate_caches()
    return tmp_path


def install(folder: Path, name: str, backend: str, source: str) -> None:
    """Install a distribution that declares one backend."""
    (folder / f"{name}_caps.py").write_text(source)
    entry = f"[backend_caps.backends]\n{backend} = {name}_caps:DECLARATION\n"
    metadata(folder, name, "1.0").joinpath("entry_points.txt").write_text(entry)


def declare(folder: Path, said: str = "", name: str = "acme", backend: str = "acme_flash") -> None:
    """Install a distribution whose backend has an adapter, and says something."""
    install(folder, name, backend, DECLARED.format(said=said))


def metadata(folder: Path, name: str, version: str) -> Path:
    """Write a distribution's metadata."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """List what was logged as a warning or worse."""
    return [own.getMessage() for own in caplog.records if own.levelno >= logging.WARNING]


def test_loader_replaces_the_decision_where_it_was_imported(sglang: SimpleNamespace) -> None:
    """The scheduler's own name for the function is ours: an inherited opt-out does not count."""
    scheduler = ModuleType("sglang.srt.managers.scheduler")
    vars(scheduler)["decide"] = sglang.overlap.decide_needs_cpu_seq_lens
    sys.modules[scheduler.__name__] = scheduler
    slots = [(_OptsOut(),), (_Inherits(),)]
    before = [vars(scheduler)["decide"](own) for own in slots]

    sglang.load()

    after = [vars(scheduler)["decide"](own) for own in slots]
    assert (before, after) == ([False, False], [False, True])


def test_loaded_decision_logs_who_forced_the_copy(
    sglang: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """SGLang's call of its own function tells what was registered, and who forced the copy."""
    sglang.load()
    caplog.set_level(logging.INFO)

    sglang.overlap.decide_needs_cpu_seq_lens([_Inherits()])

    assert "registered in SGLang 0.5.23: backend 'torch_padded' is" in caplog.text
    assert "needs_cpu_seq_lens=True under sglang-0.5.23, forced by _Inherits" in caplog.text


def test_loaded_decision_publishes_what_it_rests_on(
    sglang: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's metrics get the plan, the joint answer and the backends."""
    published: list[tuple[str, bool, tuple[object, ...]]] = []
    monkeypatch.setattr(
        "backend_caps_sglang.registration.publish",
        lambda plan, needs, backends: published.append((plan.uses[0].backend, needs, backends)),
    )
    sglang.load()
    backend = _OptsOut()

    sglang.overlap.decide_needs_cpu_seq_lens(own for own in [backend])

    assert published == [("_OptsOut", False, (backend,))]


@pytest.mark.slow
def test_scheduler_without_the_plugin_is_named(
    sglang: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its absence is an error in the others' log, and what it does next is not taken for a word."""
    monkeypatch.setenv("BACKEND_CAPS_AGREEMENT_DEADLINE", "1")
    sglang.load()
    said = [""]

    with scheduler_without_plugin("hello"):
        needs = sglang.overlap.decide_needs_cpu_seq_lens([_OptsOut()])
        dist.broadcast_object_list(said, src=1)

    assert (needs, said) == (True, ["hello"])
    assert "of 2 schedulers, rank 1 did not say within 1 s" in caplog.text


def test_loader_registers_a_backend_that_flags_take(sglang: SimpleNamespace) -> None:
    """A backend with an adapter is in SGLang's registry and among the choices, and nowhere else."""
    sglang.load()

    choices = sglang.choices.ATTENTION_BACKEND_CHOICES
    assert sglang.backends[SHIPPED].place == "torch_native_sglang:torch_padded"
    assert (choices.count(SHIPPED), choices.count("torch_native")) == (1, 1)
    assert SHIPPED not in sglang.choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES


def test_backend_of_the_same_bits_is_a_choice_of_deterministic_inference(
    sglang: SimpleNamespace, acme: Path
) -> None:
    """What declares the same bits each time, in every batch, is taken there too."""
    declare(acme, "deterministic=True, batch_invariant=True")

    register()

    assert "acme_flash" in sglang.choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES


@pytest.mark.parametrize(("said", "is_choice"), [("roles={'draft', 'target'}", True), ("", False)])
def test_backend_that_drafts_is_a_choice_of_drafts(
    said: str, is_choice: bool, sglang: SimpleNamespace, acme: Path
) -> None:
    """SGLang lists the backends of drafts apart; ours are there where they declare the role."""
    declare(acme, said)

    register()

    assert ("acme_flash" in sglang.choices.DRAFT_ATTENTION_BACKEND_CHOICES) == is_choice


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24.dev1", "0.6.0"])
def test_other_version_changes_nothing(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Outside the range function, registry, choices and hooks are the same; one line says why."""
    metadata(tmp_path, "sglang", version)
    with sglang_packages(installed=str(tmp_path)):
        sglang = modules()
        before = state_of(sglang)

        sglang.load()

        assert (state_of(sglang), os.environ[VARIABLE]) == (before, "")
    (told,) = warnings_in(caplog)
    assert told == (
        f"backend-caps-sglang changes nothing here: SGLang {version} is installed; supported is "
        "SGLang >=0.5.23,<0.5.24. Install such an SGLang, or a backend-caps-sglang for yours."
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        pytest.param(
            lambda server_args, attn_backends: server_args or attn_backends,
            "takes (server_args, attn_backends), not (attn_backends)",
            id="of-0.5.13",
        ),
        pytest.param(max, "has no signature to read", id="unreadable"),
    ],
)
def test_other_signature_changes_nothing(
    function: object, words: str, sglang: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """A version in the range whose function takes something else is refused too."""
    sglang.overlap.decide_needs_cpu_seq_lens = function
    before = state_of(sglang)

    register()

    assert state_of(sglang) == before
    assert words in warnings_in(caplog)[0]


def test_other_kind_of_registry_changes_nothing(
    sglang: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """A list of choices that is none any more is refused by what it is."""
    sglang.choices.ATTENTION_BACKEND_CHOICES = ("triton",)

    register()

    assert SHIPPED not in sglang.backends
    assert "CHOICES is of type tuple, not list" in warnings_in(caplog)[0]


def test_name_of_sglangs_is_refused(
    sglang: SimpleNamespace, acme: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both origins are named, SGLang's stays, and the others are registered."""
    declare(acme, backend="fa3")
    before = sglang.backends["fa3"]

    register()

    assert (sglang.backends["fa3"], SHIPPED in sglang.backends) == (before, True)
    (told,) = [own for own in warnings_in(caplog) if "acme 1.0" in own]
    assert (
        "attention_registry:create_flashattention_v3_backend (SGLang 0.5.23), which stays" in told
    )


def test_name_that_two_distributions_claim_is_refused(
    sglang: SimpleNamespace, acme: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither is registered, both are named, and the others are registered."""
    for name in ("acme", "other"):
        declare(acme, name=name)

    register()

    assert ("acme_flash" in sglang.backends, SHIPPED in sglang.backends) == (False, True)
    (told,) = warnings_in(caplog)
    assert "acme 1.0 (acme_caps:DECLARATION)" in told
    assert "other 1.0 (other_caps:DECLARATION)" in told


def test_broken_plugin_is_reported_and_the_others_go_on(
    sglang: SimpleNamespace, acme: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a third party's declaration raises is a line of the log."""
    install(acme, "acme", "acme_flash", RAISES)

    sglang.load()

    assert SHIPPED in sglang.backends
    (told,) = warnings_in(caplog)
    assert "acme 1.0" in told
    assert "raises RuntimeError: no such GPU" in told


@pytest.mark.parametrize(
    ("changed", "is_registered"),
    [pytest.param("", False, id="fresh"), pytest.param("# corrected since\n", True, id="stale")],
)
def test_backend_that_its_evidence_refutes_is_refused(
    changed: str,
    is_registered: bool,
    sglang: SimpleNamespace,
    acme: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A check that failed keeps a backend out until its code changes; the others are registered."""
    install_liar(acme, "is-refuted")
    with (acme / "liar_backend.py").open("a") as source:
        source.write(changed)

    register()

    assert (NAME in sglang.backends, SHIPPED in sglang.backends) == (is_registered, True)
    assert (LIES["is-refuted"][1] in caplog.text) is not is_registered


def test_settings_of_backend_caps_hold(
    sglang: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that is named says whose backends are registered, as it does everywhere else."""
    settings = tmp_path / "settings.yaml"
    settings.write_text("plugins: [acme]\n")
    monkeypatch.setenv("BACKEND_CAPS_CONFIG", str(settings))

    register()

    assert (SHIPPED in sglang.backends, DECISION in sglang.hooks._hooks) == (False, True)  # noqa: SLF001


def test_refused_setting_changes_nothing(
    sglang: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong one is in SGLang's log, with its name, and SGLang goes on as it is."""
    monkeypatch.setenv("BACKEND_CAPS_AGREEMENT_DEADLINE", "soon")
    before = state_of(sglang)

    sglang.load()

    assert state_of(sglang) == before
    assert "BACKEND_CAPS_AGREEMENT_DEADLINE" in caplog.text


def test_server_without_the_plugin_is_sglangs(
    sglang: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name in SGLANG_PLUGINS that is no plugin's leaves all out, ours among them."""
    monkeypatch.setenv("SGLANG_PLUGINS", "none")
    before = state_of(sglang)

    sglang.load()

    assert (state_of(sglang), os.environ[VARIABLE]) == (before, "")


def test_second_call_changes_nothing(
    sglang: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever calls it again finds everything as it was, and gets no message."""
    sglang.load()
    before = state_of(sglang)

    register()

    assert (state_of(sglang), warnings_in(caplog)) == (before, [])


def test_last_step_that_fails_undoes_the_others(sglang: SimpleNamespace) -> None:
    """Where another plugin has replaced the decision, no backend is registered either."""
    sglang.hooks.register(DECISION, _theirs, sglang.replace)
    before = state_of(sglang)

    with pytest.raises(DecisionTakenError, match="_theirs"):
        register()

    assert state_of(sglang) == before


def _theirs(_attn_backends: object) -> bool:
    return True


def test_hooks_that_were_applied_are_not_hooked_again(sglang: SimpleNamespace) -> None:
    """SGLang applies hooks of a function once; one that would have no effect is refused."""
    sglang.hooks.register(DECISION, _around, sglang.around)
    sglang.hooks.apply_hooks()

    with pytest.raises(DecisionTakenError, match="hooks applied before"):
        register()


def _around(original: object, _attn_backends: object) -> object:
    return original


def test_refused_hook_leaves_the_hooks_of_others(
    sglang: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is undone is ours alone: another plugin's hook of the same function stays."""
    sglang.hooks.register(DECISION, _around, sglang.around)
    before, differ = state_of(sglang), Mock(side_effect=RuntimeError("differ"))
    monkeypatch.setattr("backend_caps_sglang.registration.check_against_parent", differ)

    with pytest.raises(RuntimeError, match="differ"):
        register()

    assert state_of(sglang) == before


def test_adapter_that_is_not_there_is_an_error_when_it_is_built(
    sglang: SimpleNamespace, acme: Path
) -> None:
    """An adapter is imported when SGLang builds the backend; the error names whose it is."""
    declare(acme)
    register()

    with pytest.raises(AdapterError, match="No module named 'acme_backend'") as caught:
        sglang.backends["acme_flash"](SimpleNamespace())

    assert caught.value.owner == "acme 1.0"


def test_adapter_that_makes_something_else_is_an_error(
    sglang: SimpleNamespace, acme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no backend of SGLang's interface is refused before anything runs on it."""
    declare(acme)
    monkeypatch.setitem(sys.modules, "acme_backend", ModuleType("acme_backend"))
    vars(sys.modules["acme_backend"])["make"] = len
    register()

    with pytest.raises(AdapterError, match="it returned an object of type int"):
        sglang.backends["acme_flash"]("runner")


@pytest.mark.slow
def test_spawned_process_proves_that_it_has_the_same(sglang: SimpleNamespace) -> None:
    """A worker has what its parent has; one that has not registers nothing, and says what."""
    sglang.load()

    same, (registered, (error,)) = load_in_child(("backend 'fast'", "acme:make (acme 1.0)"))

    assert (same, registered) == ((True, []), False)
    assert f"the one that started it, {os.getpid()}, registered different things" in error
    assert "backend 'fast' is acme:make (acme 1.0) there, and nothing here" in error
