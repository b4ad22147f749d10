from __future__ import annotations

import itertools
from itertools import chain, islice, zip_longest
from pathlib import Path

import pytest
import torch
from backend_caps_torch_native import TorchNative, TorchPadded

from backend_caps import Capabilities, Declaration, Phase, Role, ServerFlags, Use, discover
from backend_caps.runtime import Engine, EngineError, ImplementationError, Sampling
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.stats import StepClock
from tests.runtime.engines import LOOPS, PLAIN_LOOP, leaks, make_engine
from tests.runtime.graphs.rig import make_site
from tests.runtime.observed import Kept
from tests.runtime.oracle import Oracle

NATIVE = "backend_caps_torch_native.native:TorchNative"
PADDED = "backend_caps_torch_native.padded:TorchPadded"


def _use(
    implementation: str | None = NATIVE,
    *,
    backend: str = "own",
    role: Role = Role.TARGET,
    phase: Phase = Phase.DECODE,
    adds_only: bool = False,
) -> Use:
    declaration = Declaration(capabilities=Capabilities(), implementation=implementation)
    return Use(
        backend=backend, role=role, phase=phase, declaration=declaration, adds_only=adds_only
    )


def _backends(*uses: Use) -> PhaseBackends:
    return PhaseBackends(uses, Role.TARGET, make_site(torch.device("cpu")))


def test_backends_serve_their_own_phases() -> None:
    """Where prefill and decode have a backend each, each phase gets its own."""
    backends = _backends(
        _use(NATIVE, backend="native", phase=Phase.PREFILL), _use(PADDED, backend="padded")
    )

    assert isinstance(backends.of(Phase.PREFILL), TorchNative)
    assert isinstance(backends.of(Phase.DECODE), TorchPadded)


def test_backend_of_two_phases_is_built_once() -> None:
    """One backend keeps one state, whichever of its phases runs."""
    backends = _backends(_use(phase=Phase.PREFILL), _use())

    assert backends.of(Phase.PREFILL) is backends.of(Phase.DECODE)


def test_backends_leave_other_roles_out() -> None:
    """A draft's backend is none of the target's, and is not built."""
    backends = _backends(_use(), _use("nobody.knows:It", backend="draft", role=Role.DRAFT))

    assert [use.backend for use in backends.uses.values()] == ["own"]


def test_backends_leave_out_what_only_adds_needs() -> None:
    """A composite's own capabilities are no backend: its parts run."""
    backends = _backends(_use(), _use("nobody.knows:It", backend="pair", adds_only=True))

    assert [use.backend for use in backends.uses.values()] == ["own"]


def test_backends_refuse_a_phase_that_nobody_serves() -> None:
    """A phase without a use is refused, with those that have one."""
    backends = _backends(_use())

    with pytest.raises(EngineError) as caught:
        backends.of(Phase.PREFILL)

    assert str(caught.value) == (
        "the plan has no use of phase 'prefill'; it has: decode. "
        "Resolve the plan from the uses of the server's flags: registry.uses(flags)."
    )


def test_backends_refuse_two_in_one_phase() -> None:
    """Two backends for one phase are a model's layers to choose between, which none here does."""
    with pytest.raises(EngineError) as caught:
        _backends(_use(backend="second"), _use(backend="first"))

    assert str(caught.value) == (
        "phase 'decode' is shared by 'first', 'second'; one backend a phase was expected. "
        "Name one of them in --attention-backend."
    )


@pytest.mark.parametrize(
    ("implementation", "where", "problem"),
    [
        (None, "", "its declaration names no implementation"),
        ("nobody.knows:It", " (nobody.knows:It)", "No module named 'nobody'"),
        (
            "backend_caps_torch_native.native:Absent",
            " (backend_caps_torch_native.native:Absent)",
            "backend_caps_torch_native.native has no 'Absent'",
        ),
    ],
)
def test_backends_refuse_one_without_code(
    implementation: str | None, where: str, problem: str
) -> None:
    """A backend that names no code, or none that can be imported, is refused by its name."""
    with pytest.raises(ImplementationError) as caught:
        _backends(_use(implementation))

    assert str(caught.value) == (
        f"backend 'own'{where} cannot be built: {problem}; a declaration with "
        "implementation='package.module:Class' was expected. Install what it needs, or name "
        "another backend."
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        pytest.param("import no_such_module", "No module named 'no_such_module'", id="import"),
        pytest.param("def (", "invalid syntax", id="syntax"),
        pytest.param("raise ValueError", "ValueError", id="error-without-words"),
    ],
)
def test_backends_name_the_line_of_an_import_that_fails(
    line: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error within the plugin's own module has that module's line."""
    (tmp_path / "failing_backend.py").write_text(f"\n{line}\nclass Own: ...\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ImplementationError) as caught:
        _backends(_use("failing_backend:Own"))

    assert caught.value.problem == f"{problem}, at {tmp_path}/failing_backend.py:2"


def test_backends_refuse_one_whose_declaration_was_not_read() -> None:
    """Nothing can be built of a use without a declaration."""
    use = Use(backend="own", role=Role.TARGET, phase=Phase.DECODE, declaration=None)

    with pytest.raises(
        ImplementationError, match="'own' cannot be built: its declaration was not read;"
    ):
        _backends(use)


def test_backends_say_why_a_declaration_was_not_read() -> None:
    """A plugin that nobody installed is missing in so many words."""
    flags = ServerFlags.from_argv(["--attention-backend", "nobodys"])
    use, *_ = discover().uses(flags)

    with pytest.raises(ImplementationError) as caught:
        _backends(use)

    assert caught.value.problem == (
        "no installed plugin declares backend 'nobodys' (--attention-backend)"
    )


ENDLESS = Sampling(max_new_tokens=6, stop_token_ids=frozenset())


def _kept(oracle: Oracle, device: torch.device | str, *arguments: str) -> Kept:
    """Run two prompts of 5 and 9 tokens, and keep the steps."""
    kept = Kept()
    engine = make_engine(oracle.folder, *arguments, device=device, observer=kept)
    engine.generate([[5] * 5, [6] * 9], sampling=ENDLESS)
    engine.drain()
    return kept


def test_step_brings_a_token_of_each_request_to_the_host(
    oracle: Oracle, device: torch.device
) -> None:
    """Eight bytes a request cross to the host, and nothing else."""
    kept = _kept(oracle, device)

    assert [own.bytes_to_host for own in kept.steps] == [2 * 8] * 6


def test_decode_step_carries_new_pages_alone_to_the_device(
    oracle: Oracle, device: torch.device
) -> None:
    """Three numbers of each new page cross to the device; where none is needed, nothing does."""
    kept = _kept(oracle, device, "--page-size", "4", *PLAIN_LOOP)

    # Contexts of 5 and 9 tokens get their next page with the 9th and the 13th: the 4th new one.
    assert [own.bytes_to_device for own in kept.steps[1:]] == [0, 0, 0, 2 * 3 * 8, 0]


@pytest.mark.parametrize("arguments", [(), PLAIN_LOOP])
def test_stations_of_a_step_are_passed_in_order(oracle: Oracle, arguments: tuple[str, ...]) -> None:
    """The host's clock never runs backwards from a step's choice to its last token."""
    kept = _kept(oracle, "cpu", *arguments)

    for own in kept.steps:
        stations = _stations(own.clock)
        assert stations == sorted(stations)


def _stations(clock: StepClock) -> list[float]:
    until_launched = [clock.began_s, clock.lengths_s, clock.model_s, clock.model_done_s]
    return [*until_launched, clock.launched_s, clock.result_s, clock.tokens_s, clock.done_s]


def test_overlapped_loop_launches_before_it_waits(oracle: Oracle) -> None:
    """Each step is launched before the host waits for the tokens of the one before."""
    steps = _kept(oracle, "cpu").steps

    for before, after in itertools.pairwise(steps):
        assert after.clock.launched_s <= before.clock.result_s


def test_plain_loop_waits_before_it_builds(oracle: Oracle) -> None:
    """Each step is begun after the tokens of the one before are there."""
    steps = _kept(oracle, "cpu", *PLAIN_LOOP).steps

    for before, after in itertools.pairwise(steps):
        assert before.clock.tokens_s <= after.clock.began_s


def _prompts(oracle: Oracle, start: int, stop: int) -> list[tuple[int, ...]]:
    return [job.prompt for job in oracle.jobs[start:stop]]


def _by_place(pairs: list[tuple[int, int]]) -> list[list[int]]:
    """Gather streamed tokens by the place of their prompt."""
    num_places = 1 + max(place for place, _ in pairs)
    return [[token for own, token in pairs if own == place] for place in range(num_places)]


@pytest.mark.parametrize("loop", LOOPS)
def test_stream_yields_the_tokens_of_generate(oracle: Oracle, loop: tuple[str, ...]) -> None:
    """Gathered by prompt, streamed tokens are the outputs that `generate` returns."""
    prompts = _prompts(oracle, 0, 7)
    expected = make_engine(oracle.folder, *loop).generate(prompts, 9)

    assert _by_place(list(make_engine(oracle.folder, *loop).stream(prompts, 9))) == expected


def test_stream_yields_tokens_as_they_come(oracle: Oracle) -> None:
    """Requests that run together take turns: each prompt's first token is before any second."""
    pairs = list(make_engine(oracle.folder).stream(_prompts(oracle, 2, 5), 4))

    assert [place for place, _ in pairs[:3]] == [0, 1, 2]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("num_read", [1, 5])
def test_stream_that_is_closed_aborts_its_requests(
    oracle: Oracle, loop: tuple[str, ...], num_read: int
) -> None:
    """Who stops reading gives the requests up, and an empty engine is soon empty again."""
    engine = make_engine(oracle.folder, *loop)
    stream = engine.stream(_prompts(oracle, 2, 6), 20)
    assert len(list(islice(stream, num_read))) == num_read

    del stream  # as who leaves a loop over it does
    engine.drain()

    assert leaks(engine) == (0, 0)
    assert engine.scheduler.has_work is False


def test_streams_of_one_engine_take_no_tokens_from_each_other(oracle: Oracle) -> None:
    """Two streams that are read in turn have all their tokens, whoever runs the steps."""
    engine = make_engine(oracle.folder)
    sides = (_prompts(oracle, 0, 4), _prompts(oracle, 10, 14))
    expected = [make_engine(oracle.folder).generate(prompts, 9) for prompts in sides]

    one, other = _read_in_turn(engine, *sides)

    assert [_by_place(one), _by_place(other)] == expected


def _read_in_turn(
    engine: Engine, *sides: list[tuple[int, ...]]
) -> tuple[list[tuple[int, int]], ...]:
    """Read a token of each side's stream, then the next one of each."""
    turns = zip_longest(*(engine.stream(prompts, 9) for prompts in sides))
    return tuple([pair for pair in side if pair is not None] for side in zip(*turns, strict=True))


def test_stream_keeps_its_tokens_while_others_generate(oracle: Oracle) -> None:
    """What a `generate` in between makes of a stream's requests is yielded afterwards."""
    engine = make_engine(oracle.folder)
    prompts = _prompts(oracle, 0, 4)
    expected = make_engine(oracle.folder).generate(prompts, 9)
    stream = engine.stream(prompts, 9)
    first = [next(stream)]

    engine.generate(_prompts(oracle, 10, 14), 20)

    assert _by_place(list(chain(first, stream))) == expected
