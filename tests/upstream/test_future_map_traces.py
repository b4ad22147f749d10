import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DraftShape, FutureMap, RelayPayload
from backend_caps.relay.host_lengths import MAX_COLUMN_ROWS
from tests.upstream import sglang_wheel
from tests.upstream.future_map_traces import Batch, Setting, SpecState, Trace
from tests.upstream.sglang_wheel import cpu_record_stream, load_overlap_utils, make_future_map

pytestmark = pytest.mark.upstream

TRACES = 50
CALLS = 25
COLUMN_POOLS = (17, MAX_COLUMN_ROWS)
ROWS_POOLS = (MAX_COLUMN_ROWS + 1, MAX_COLUMN_ROWS + 800)
SETTINGS = [
    pytest.param(
        Setting(speculative=speculative, mirror=mirror, hidden=hidden),
        id=f"{'spec' if speculative else 'plain'}-{'mirror' if mirror else 'none'}"
        f"-{'hidden' if hidden else 'tokens'}",
    )
    for speculative, mirror, hidden in product((True, False), repeat=3)
    if speculative or not hidden
] + [
    pytest.param(
        Setting(speculative=True, mirror=True, hidden=hidden, streams=True, pools=pools),
        id=f"spec-mirror-{'hidden' if hidden else 'tokens'}-{copy}",
    )
    for copy, hidden, pools in (("column", True, COLUMN_POOLS), ("rows", False, ROWS_POOLS))
]


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Keep torch on one thread: on a busy machine a second one makes a small call slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("setting", SETTINGS)
def test_future_map_equals_sglang_on_random_traces(setting: Setting) -> None:
    """Every field of every batch equals SGLang 0.5.13's after each call of a random trace."""
    module = load_overlap_utils("0.5.13", hidden_states=setting.hidden)

    with cpu_record_stream():
        for seed in range(TRACES):
            Trace(module, setting, seed).run(CALLS)


def test_future_map_serves_an_idle_spec_batch_where_sglang_raises() -> None:
    """An idle speculative batch may be the first forward; 0.5.13 has no draft buffers by then."""
    module = load_overlap_utils("0.5.13")
    theirs = make_future_map(module, pool_size=8, speculative=True, needs_cpu_seq_lens=True)
    ours = FutureMap(
        pool_size=8,
        device="cpu",
        host_seq_lens=HostSeqLens.EXACT,
        speculative=True,
        draft=DraftShape(topk=2, hidden_size=4, dtype=torch.bfloat16),
    )
    idle = torch.empty(0, dtype=torch.int64)
    batch = Batch(idle, idle, idle, None, None, None, None, None, SpecState(idle))

    ours.resolve_future(batch)

    assert batch.spec_info is not None
    assert batch.spec_info.hidden_states is not None
    assert batch.spec_info.hidden_states.shape == (0, 4)
    with cpu_record_stream(), pytest.raises(AttributeError, match=r"_buf"):
        theirs._resolve_spec_extras(batch)  # noqa: SLF001 - what its forward entry calls


def test_future_map_gives_tokens_to_a_plain_batch_where_sglang_gives_none() -> None:
    """A plain decode batch of a speculative map gets its tokens; 0.5.13 leaves its ids None."""
    module = load_overlap_utils("0.5.13")
    theirs = make_future_map(module, pool_size=8, speculative=True, needs_cpu_seq_lens=False)
    ours = FutureMap(pool_size=8, device="cpu", host_seq_lens=HostSeqLens.NONE, speculative=True)
    rows, tokens = torch.tensor([3, 1]), torch.tensor([501, 502])
    batch = Batch(rows, rows, rows, None, None, None, None, None, None)
    their_batch = SimpleNamespace(**vars(batch), enable_overlap=True, is_spec_v2=True)

    ours.stash(rows, RelayPayload(tokens))
    ours.set_input_ids_sentinel(batch)
    ours.resolve_future(batch)
    theirs.stash(rows, tokens)
    module.resolve_forward_inputs(their_batch, theirs)

    assert batch.input_ids is not None
    assert batch.input_ids.tolist() == [501, 502]
    assert their_batch.input_ids is None


def test_wheel_load_imports_nothing_named_sglang() -> None:
    """SGLang's module runs on stubs, and no SGLang module is imported."""
    module = sglang_wheel.load_overlap_utils("0.5.13")

    assert callable(module.decide_needs_cpu_seq_lens)
    assert [name for name in sys.modules if name.split(".")[0] == "sglang"] == []


def test_wheel_missing_is_an_error_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wheel a comparison fails and says how to fetch it."""
    monkeypatch.setattr(sglang_wheel, "WHEELS", tmp_path)

    with pytest.raises(FileNotFoundError, match=r"pip download --no-deps sglang==0\.5\.13"):
        sglang_wheel.load_overlap_utils("0.5.13")
