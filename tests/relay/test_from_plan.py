import pytest
import torch

from backend_caps import (
    Capabilities,
    Declaration,
    HostSeqLens,
    Phase,
    Plan,
    Role,
    RuleSet,
    ServerFlags,
    Use,
    resolve,
)
from backend_caps.relay import DeviceStreams, DraftShape, FutureMap, RelayError
from tests.relay.batches import listed, numbers, spec_batch

SPECULATIVE = ["--speculative-algorithm", "EAGLE3", "--disable-piecewise-cuda-graph"]
PLANS = [
    pytest.param(HostSeqLens.NONE, SPECULATIVE, (HostSeqLens.NONE, True), id="none"),
    pytest.param(HostSeqLens.EXACT, SPECULATIVE, (HostSeqLens.EXACT, True), id="exact"),
    pytest.param(HostSeqLens.EXACT, [], (HostSeqLens.EXACT, False), id="plain decode"),
    pytest.param(
        HostSeqLens.EXACT,
        [*SPECULATIVE, "--disable-overlap-schedule"],
        (HostSeqLens.NONE, True),
        id="no overlap",
    ),
]


def planned(needs: HostSeqLens, argv: list[str]) -> Plan:
    """Resolve a server of one backend that needs this much."""
    capabilities = Capabilities(host_seq_lens=needs, max_context_len_known=True)
    declaration = Declaration(capabilities=capabilities, implementation="my_flash:MyFlash")
    use = Use(backend="my_flash", role=Role.TARGET, phase=Phase.DECODE, declaration=declaration)
    flags = ServerFlags.from_argv(["--attention-backend", "my_flash", *argv])
    return resolve((use,), flags, rules=RuleSet.builtin("sglang-0.5.13"))


@pytest.mark.parametrize(("needs", "argv", "expected"), PLANS)
def test_map_is_what_the_plan_says(
    needs: HostSeqLens, argv: list[str], expected: tuple[HostSeqLens, bool]
) -> None:
    """The mode is the plan's; without overlap nothing crosses, and draft state is relayed."""
    fm = FutureMap.from_plan(planned(needs, argv), pool_size=4, device="cpu")

    assert (fm.host_seq_lens, fm.speculative) == expected


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        pytest.param(None, 14, id="flag"),
        pytest.param(DraftShape(topk=1), 14, id="shape without the number"),
        pytest.param(DraftShape(topk=1, accept_tokens=2), 12, id="shape"),
    ],
)
def test_bound_takes_the_most_tokens_that_a_step_can_accept(
    draft: DraftShape | None, expected: int
) -> None:
    """The draft shape says how far a step goes, or else the number of draft tokens does."""
    argv = [*SPECULATIVE, "--speculative-num-draft-tokens", "4"]
    plan = planned(HostSeqLens.UPPER_BOUND, argv)
    fm = FutureMap.from_plan(plan, pool_size=4, device="cpu", draft=draft)
    fm.commit_lengths(numbers([1]), numbers([10]), numbers([0]))
    batch = spec_batch([1])

    fm.resolve_seq_lens_cpu(batch)
    fm.resolve_seq_lens_cpu(batch)

    assert listed(batch.seq_lens_cpu_upper_bound) == [expected]


def test_bound_is_clamped_to_the_width_of_a_row() -> None:
    """An overlapped step starts above the context, and none above what SGLang gives a row."""
    argv = [*SPECULATIVE, "--speculative-num-draft-tokens", "4", "--context-length", "12"]
    fm = FutureMap.from_plan(planned(HostSeqLens.UPPER_BOUND, argv), pool_size=4, device="cpu")
    fm.commit_lengths(numbers([1]), numbers([10]), numbers([0]))
    batch = spec_batch([1])

    for _ in range(9):
        fm.resolve_seq_lens_cpu(batch)

    assert listed(batch.seq_lens_cpu_upper_bound) == [12 + 4 + 4]


def test_bound_that_nothing_says_is_an_error() -> None:
    """A plan with upper bounds and no number of draft tokens cannot be configured."""
    plan = planned(HostSeqLens.UPPER_BOUND, SPECULATIVE)

    with pytest.raises(RelayError, match="--speculative-num-draft-tokens"):
        FutureMap.from_plan(plan, pool_size=4, device="cpu")


def test_streams_reach_the_map() -> None:
    """A map of a plan works with the streams that it is given."""
    streams = DeviceStreams("cpu")

    fm = FutureMap.from_plan(
        planned(HostSeqLens.NONE, []), pool_size=4, device="cpu", streams=streams
    )

    assert fm.streams is streams


def test_debug_reaches_the_map() -> None:
    """A map of a plan checks its calls where it is asked to."""
    plan = planned(HostSeqLens.NONE, SPECULATIVE)
    fm = FutureMap.from_plan(plan, pool_size=4, device="cpu", debug=True)

    with pytest.raises(Exception, match="row 9"):
        fm.publish(numbers([9]), torch.tensor([1]))
