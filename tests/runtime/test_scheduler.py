from __future__ import annotations

import pytest

from backend_caps.runtime import Engine, EngineOptions, FinishReason, Request, Sampling
from backend_caps.runtime.batch import ForwardMode
from tests.runtime.engines import LOOPS, PLAIN_LOOP, SMALL_CACHE, leaks, make_engine, run, submit
from tests.runtime.observed import Kept
from tests.runtime.oracle import Job, Oracle

Asked = list[tuple[tuple[int, ...], int]]
CHUNKED = EngineOptions(chunked_prefill_size=8)


def _stopped(oracle: Oracle) -> tuple[Job, list[int]]:
    """Choose a job whose output a stop token ends, with steps before and room behind."""
    pairs = zip(oracle.jobs, oracle.tokens, strict=True)
    return next((job, tokens) for job, tokens in pairs if 3 < len(tokens) < job.max_new_tokens - 3)


def test_stop_tokens_of_the_request_replace_the_models(oracle: Oracle) -> None:
    """Who names stop tokens, or none, is not stopped by the model's."""
    job, tokens = _stopped(oracle)
    engine = make_engine(oracle.folder)
    goes_on = Sampling(max_new_tokens=len(tokens) + 2, stop_token_ids=frozenset())
    stops = Sampling(max_new_tokens=8, stop_token_ids=frozenset(tokens[:1]))

    requests = [engine.submit(job.prompt, each) for each in (goes_on, stops)]
    engine.drain()

    assert [own.finish_reason for own in requests] == [FinishReason.LENGTH, FinishReason.STOP]
    assert requests[0].output[: len(tokens)] == tokens
    assert requests[1].output == tokens[:1]


@pytest.mark.parametrize(
    ("loop", "made"),
    [pytest.param((), 0, id="overlapped"), pytest.param(PLAIN_LOOP, 1, id="plain")],
)
def test_loop_has_a_steps_token(oracle: Oracle, loop: tuple[str, ...], made: int) -> None:
    """The overlapped loop has a step's tokens one step late, the plain one at once."""
    engine = make_engine(oracle.folder, *loop)
    submit(engine, oracle.jobs[3])

    assert len(engine.step()) == made


@pytest.mark.parametrize(
    ("loop", "num_more"),
    [pytest.param((), 1, id="overlapped"), pytest.param(PLAIN_LOOP, 0, id="plain")],
)
def test_token_behind_a_stop_is_dropped(
    oracle: Oracle, loop: tuple[str, ...], num_more: int
) -> None:
    """The overlapped loop runs one more step of a request that has ended, for nobody."""
    job, tokens = _stopped(oracle)
    kept = Kept()

    assert run(make_engine(oracle.folder, *loop, observer=kept), [job]) == [tokens]
    assert [own.num_made for own in kept.steps] == [*[1] * len(tokens), *[0] * num_more]


def test_no_step_is_launched_behind_the_length(oracle: Oracle) -> None:
    """Where an output ends by its length, the host knows that before, and launches no more."""
    kept = Kept()
    engine = make_engine(oracle.folder, observer=kept)

    engine.generate([oracle.jobs[3].prompt], sampling=_unstopped(5))
    engine.drain()

    assert [own.num_made for own in kept.steps] == [1] * 5


def _unstopped(max_new_tokens: int) -> Sampling:
    return Sampling(max_new_tokens=max_new_tokens, stop_token_ids=frozenset())


def _where(request: Request) -> str:
    """Name the stage that a request is at."""
    if not request.row:
        return "waiting"
    if request.num_left_to_prefill:
        return "cut"
    if request.is_launched_out:
        return "launched out"
    return "decoding" if request.output else "its prompt under way"


@pytest.mark.parametrize("mixed", [(), ("--enable-mixed-chunk",)])
@pytest.mark.parametrize(
    ("options", "max_new_tokens", "num_steps", "stage"),
    [
        (EngineOptions(), 9, 0, "waiting"),
        (CHUNKED, 9, 1, "cut"),
        (EngineOptions(), 9, 1, "its prompt under way"),
        (EngineOptions(), 9, 4, "decoding"),
        (EngineOptions(), 3, 3, "launched out"),
    ],
)
def test_abort_at_any_stage_gives_everything_back(
    oracle: Oracle,
    mixed: tuple[str, ...],
    options: EngineOptions,
    max_new_tokens: int,
    num_steps: int,
    stage: str,
) -> None:
    """Wherever a request is given up, its output stays as it is, and the other's comes whole."""
    engine = make_engine(oracle.folder, *mixed, options=options)
    given_up = engine.submit(oracle.jobs[40].prompt, _unstopped(max_new_tokens))
    other = submit(engine, oracle.jobs[30])
    output = _abort_after(engine, given_up, num_steps, stage)

    engine.drain()

    assert (given_up.output, given_up.finish_reason) == (output, FinishReason.ABORT)
    assert other.output == oracle.tokens[30]
    assert leaks(engine) == (0, 0)


def _abort_after(engine: Engine, request: Request, num_steps: int, stage: str) -> list[int]:
    """Run some steps, give a request up at the stage that it then is at, and return its output."""
    for _ in range(num_steps):
        engine.step()
    assert _where(request) == stage
    engine.abort(request)
    return list(request.output)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_aborted_alone_leaves_an_engine_without_work(
    oracle: Oracle, loop: tuple[str, ...], num_steps: int
) -> None:
    """An engine whose last request is given up ends, and has everything back."""
    engine = make_engine(oracle.folder, *loop, options=CHUNKED)
    request = engine.submit(oracle.jobs[10].prompt, _unstopped(9))
    for _ in range(num_steps):
        engine.step()

    engine.abort(request)
    engine.drain()

    assert not engine.scheduler.has_work
    assert leaks(engine) == (0, 0)


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_tell_of_every_retraction(oracle: Oracle, loop: tuple[str, ...]) -> None:
    """What steps tell of retractions sums up to the stays that requests lost, and no token."""
    kept = Kept()
    engine = make_engine(oracle.folder, *loop, options=SMALL_CACHE, observer=kept)
    requests = [submit(engine, job) for job in oracle.jobs[:60]]

    engine.drain()

    lost = sum(request.num_retractions for request in requests)
    assert sum(own.num_retracted for own in kept.steps) == lost > 0
    assert [request.output for request in requests] == oracle.tokens[:60]


def test_steps_tell_what_they_ran(oracle: Oracle) -> None:
    """A mixed workload has steps of each kind, each with the tokens that its forward computed."""
    kept = Kept()
    engine = make_engine(oracle.folder, "--enable-mixed-chunk", options=CHUNKED, observer=kept)

    tokens = run(engine, oracle.jobs[:6])

    modes = {own.mode for own in kept.steps}
    assert modes == {ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.DECODE}
    assert all(own.num_tokens <= 8 + own.num_requests for own in kept.steps)
    assert sum(own.num_made for own in kept.steps) == sum(map(len, tokens))


def test_mixed_steps_have_running_requests_decode_beside_prompts(oracle: Oracle) -> None:
    """Where steps mix, who runs gets a token in every step in which a prompt's stretch runs."""
    engine = make_engine(oracle.folder, *PLAIN_LOOP, "--enable-mixed-chunk", options=CHUNKED)
    running = engine.submit(oracle.jobs[3].prompt, _unstopped(20))
    engine.step()
    engine.submit(oracle.jobs[40].prompt, _unstopped(1))

    assert [[own.request for own in engine.step()] for _ in range(5)] == [[running]] * 5


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        pytest.param(PLAIN_LOOP, EngineOptions(), id="plain"),
        pytest.param(("--enable-mixed-chunk",), CHUNKED, id="mixed and chunked"),
        pytest.param(("--page-size", "4"), SMALL_CACHE, id="retracted"),
    ],
)
def test_sampled_tokens_are_the_same_in_every_way_of_running(
    oracle: Oracle, arguments: tuple[str, ...], options: EngineOptions
) -> None:
    """A request with a seed gets the same tokens, whatever runs beside it and however often."""
    sampling = Sampling(max_new_tokens=12, temperature=0.9, top_k=20, top_p=0.9, seed=11)
    prompts = [job.prompt for job in oracle.jobs[:40]]
    expected = make_engine(oracle.folder).generate(prompts, sampling=sampling)

    tokens = make_engine(oracle.folder, *arguments, options=options).generate(
        prompts, sampling=sampling
    )

    assert tokens == expected


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mixed", [(), ("--enable-mixed-chunk",)])
def test_half_run_prompt_gives_way_to_who_runs(
    oracle: Oracle, loop: tuple[str, ...], mixed: tuple[str, ...]
) -> None:
    """Where a cut prompt and a running request fill the KV cache, the prompt starts anew."""
    asked = [(oracle.jobs[3].prompt, 24), (oracle.jobs[26].prompt, 4)]
    full = EngineOptions(max_total_tokens=32, chunked_prefill_size=4)
    engine = make_engine(oracle.folder, *loop, *mixed, options=full)

    running, cut = _run_some_steps(engine, asked)

    assert (running.num_retractions, cut.num_retractions > 0) == (0, True)
    assert [running.output, cut.output] == _in_a_roomy_engine(oracle, asked)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mixed", [(), ("--enable-mixed-chunk",)])
def test_token_of_an_earlier_stay_is_dropped(
    oracle: Oracle, loop: tuple[str, ...], mixed: tuple[str, ...]
) -> None:
    """Who is taken out while a step is under way, and is back at once, gets that token once."""
    # With 4 and 8 tokens, both begin a page with their 10th token: one page is left for two.
    asked = [(oracle.jobs[3].prompt, 10), (oracle.jobs[7].prompt, 10)]
    arguments = (*loop, *mixed, "--page-size", "4")
    engine = make_engine(oracle.folder, *arguments, options=EngineOptions(max_total_tokens=32))

    first, retracted = _run_some_steps(engine, asked)

    assert (first.num_retractions, retracted.num_retractions) == (0, 1)
    assert [first.output, retracted.output] == _in_a_roomy_engine(oracle, asked)


def _run_some_steps(engine: Engine, asked: Asked) -> list[Request]:
    """Run requests for more steps than they need, each as many tokens as it asked for."""
    requests = [engine.submit(prompt, _unstopped(count)) for prompt, count in asked]
    for _ in range(300):
        engine.step()
    return requests


def _in_a_roomy_engine(oracle: Oracle, asked: Asked) -> list[list[int]]:
    """Say what the tokens are where everything fits."""
    return [request.output for request in _run_some_steps(make_engine(oracle.folder), asked)]


def test_abort_leaves_a_finished_request_as_it_ended(oracle: Oracle) -> None:
    """Who has ended by itself cannot be given up any more."""
    engine = make_engine(oracle.folder)
    request = engine.submit([1, 2, 3], Sampling(max_new_tokens=1, stop_token_ids=frozenset()))
    engine.drain()

    engine.abort(request)

    assert request.finish_reason is FinishReason.LENGTH
