from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend_caps import (
    ANY,
    BatchKind,
    Declaration,
    HostSeqLens,
    OneOf,
    Part,
    Phase,
    Role,
    discover,
)
from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.sets import Exact, Sizes
from backend_caps.kit import (
    Forward,
    KitError,
    Rig,
    Scenario,
    Subject,
    difference,
    draw,
    scenarios_of,
    supplied,
)
from backend_caps.kit.errors import BaselineError
from backend_caps.kit.scenarios import dtypes_of, forwards_of, head_sizes_of, page_sizes_of
from tests.kit.made import HONEST, claiming

every_forward = pytest.mark.parametrize("forward", Forward, ids=lambda own: own.value)


@every_forward
@pytest.mark.parametrize("page_size", [1, 16])
def test_drawn_batches_fit(forward: Forward, page_size: int) -> None:
    """Whatever the seed, requests fit the page table, and seed 0 is a batch of one."""
    scenario = Scenario(forward=forward, page_size=page_size)
    scenes = [draw(scenario, seed) for seed in range(30)]

    assert len(scenes[0].counts) == 1
    for scene in scenes:
        assert int(scene.batch.seq_lens.min()) >= 1
        assert int(scene.batch.seq_lens.max()) <= scenario.max_context_len
        assert scene.batch.mode is forward.mode


@every_forward
def test_same_case_is_the_same_batch(forward: Forward) -> None:
    """A name and a seed are enough to have it again."""
    one, other = (draw(Scenario(forward=forward), 5) for _ in range(2))

    assert torch.equal(one.q, other.q)
    assert torch.equal(one.pools.req_to_token, other.pools.req_to_token)


def test_lengths_stand_at_the_edges_of_pages() -> None:
    """Among a few seeds some contexts end right at a page, and some one behind it."""
    scenario = Scenario(forward=Forward.DECODE, page_size=16)
    lengths = {int(n) for seed in range(20) for n in draw(scenario, seed).batch.seq_lens}

    assert {16, 17} <= lengths


@pytest.mark.parametrize(
    ("forward", "role", "phase", "kind"),
    [
        (Forward.CHUNK, Role.TARGET, Phase.PREFILL, BatchKind.MIXED_BATCH),
        (Forward.DECODE, Role.TARGET, Phase.DECODE, BatchKind.SINGLE_TOKEN_DECODE),
        (Forward.TREE, Role.TARGET, Phase.VERIFY, BatchKind.UNIFORM_BATCH),
        (Forward.DRAFT, Role.DRAFT, Phase.DECODE, BatchKind.UNIFORM_BATCH),
        (Forward.DRAFT_EXTEND, Role.DRAFT_EXTEND, Phase.VERIFY, BatchKind.UNIFORM_BATCH),
    ],
)
def test_forward_has_a_role_and_a_phase(
    forward: Forward, role: Role, phase: Phase, kind: BatchKind
) -> None:
    """Each forward is some use's, and its batches are of one kind."""
    assert (forward.role, forward.phase, forward.batch_kind) == (role, phase, kind)


def test_forwards_are_those_that_are_claimed() -> None:
    """A role that is not claimed is not tried, nor is a tree where top-k is 1."""
    subject = claiming(roles={Role.TARGET, Role.DRAFT_EXTEND}, max_speculative_topk=1)

    left_out = set(Forward) - set(forwards_of(subject))

    assert left_out == {Forward.TREE, Forward.DRAFT}


def test_sizes_are_those_that_are_claimed() -> None:
    """Of what servers use, what is claimed; of what is unknown here or unsaid, the plainest."""
    subject = claiming(page_sizes=OneOf({16, 64}), head_sizes=OneOf({7}), dtypes=ANY)

    assert page_sizes_of(subject) == (16, 64)
    assert head_sizes_of(subject) == (16,)
    assert dtypes_of(subject) == ("float32", "bfloat16", "float16")


@pytest.mark.parametrize(
    ("blocks", "pages"),
    [
        pytest.param(OneOf({32, 64}), (64, 32, 128, 256), id="some fit"),
        pytest.param(Exact(512), (1, 16, 64, 32, 128, 4, 256), id="none fits"),
    ],
)
def test_pages_are_multiples_of_a_claimed_block(blocks: Sizes, pages: tuple[int, ...]) -> None:
    """Of the claimed pages, those are tried that split into the kernel's blocks."""
    subject = claiming(page_sizes=ANY, kernel_block_sizes=blocks)

    assert page_sizes_of(subject) == pages


def test_scenarios_have_two_page_sizes() -> None:
    """Each forward is tried with pages of one and of several tokens."""
    assert [own.page_size for own in scenarios_of(HONEST, [Forward.DECODE])] == [1, 16]


@pytest.mark.parametrize(
    ("level", "forward", "has_mirror", "has_bound"),
    [
        (HostSeqLens.NONE, Forward.DECODE, False, False),
        (HostSeqLens.UPPER_BOUND, Forward.DECODE, False, True),
        (HostSeqLens.EXACT, Forward.DECODE, True, True),
        (HostSeqLens.NONE, Forward.CHUNK, True, False),
    ],
)
def test_supplied_is_what_an_engine_brings(
    level: HostSeqLens, forward: Forward, *, has_mirror: bool, has_bound: bool
) -> None:
    """Host lengths are those of the level; a prefill's mirror is the scheduler's."""
    batch = supplied(draw(Scenario(forward=forward), 1), level).batch

    assert (batch.seq_lens_cpu is not None) is has_mirror
    assert (batch.seq_lens_sum is not None) is has_mirror
    assert (batch.seq_lens_cpu_upper_bound is not None) is has_bound


def test_baseline_that_raises_is_none() -> None:
    """What cannot be run plainly has nothing to be compared with."""
    declaration = HONEST.declaration.model_copy(update={"implementation": "nowhere:Nothing"})
    rig = Rig(subject=type(HONEST)(name="own", declaration=declaration))

    with pytest.raises(BaselineError, match="No module named 'nowhere'"):
        rig.baseline(draw(Scenario(forward=Forward.DECODE), 0))


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_eager_run_is_the_baseline(device: str) -> None:
    """An honest backend gives the same, with what its claims bring."""
    rig, scene = Rig(subject=HONEST, device=device), draw(Scenario(forward=Forward.VERIFY), 3)
    expected = rig.baseline(scene)

    with rig.running():
        found = rig.eager(scene)

    assert torch.equal(found, expected)
    assert rig.streams().device.type == device


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param(0.0, None, id="equal"),
        pytest.param(1e-7, None, id="near"),
        pytest.param(0.5, "tokens 1 differ by up to 0.5, allowed is 1e-05", id="far"),
        pytest.param(torch.nan, "NaN or infinity in the outputs of tokens 1", id="poison"),
    ],
)
def test_difference_names_the_tokens(changed: float, words: str | None) -> None:
    """What is within the tolerance is no difference; else the tokens are reported, and how far."""
    expected = torch.ones(3, 1, 2)
    found = expected.clone()
    found[1] += changed

    assert difference(found, expected, 1e-5) == words


def test_difference_names_some_of_many_tokens() -> None:
    """A long list is cut."""
    words = difference(torch.ones(9, 1, 1), torch.zeros(9, 1, 1), 1e-5)

    assert words == "tokens 0, 1, 2, 3, 4, 5 and 3 more differ by up to 1, allowed is 1e-05"


def test_scaling_is_not_what_kernels_take_unasked() -> None:
    """One over the root of the head size is what comes out where a layer's own is forgotten."""
    layer = Scenario(forward=Forward.DECODE).setting(0).layer

    assert layer.scaling != layer.qk_head_dim**-0.5


def _found(declaration: Declaration | None, status: Status = Status.OK) -> Backend:
    return Backend(name="own", status=status, source=BY_HAND, declaration=declaration)


def test_installed_backend_is_a_subject() -> None:
    """What discovery found is checked under its name."""
    subject = Subject.of(discover()["torch_padded"])

    assert subject.name == "torch_padded"
    assert subject.claim("host_seq_lens") is HostSeqLens.NONE


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        pytest.param(_found(None, Status.BROKEN), "broken", id="broken"),
        pytest.param(
            _found(Declaration(parts=[Part("b"), Part("a", phases={Phase.DECODE})])),
            "it is a composite: check its parts, a, b",
            id="composite",
        ),
    ],
)
def test_backend_that_cannot_be_built_is_refused(backend: Backend, words: str) -> None:
    """The error says why the kit has nothing to run."""
    with pytest.raises(KitError) as caught:
        Subject.of(backend)

    assert caught.value.code == "uncheckable"
    assert f"cannot be checked: {words};" in str(caught.value)


def test_claim_that_nobody_made_is_the_worst() -> None:
    """What is undeclared counts as the worst value, as on a server."""
    subject = Subject(name="own", declaration=Declaration())

    assert subject.claim("host_seq_lens") is HostSeqLens.EXACT


def test_root_is_the_package_of_the_implementation() -> None:
    """All files of the package are the backend's, and others are not."""
    root = HONEST.root

    assert root.name == "backend_caps_torch_native"
    assert HONEST.owns(str(root / "padded.py"))
    assert not HONEST.owns(__file__)


def test_root_of_a_lone_module_is_its_file() -> None:
    """A package without a file of its own leaves the module."""
    declaration = HONEST.declaration.model_copy(update={"implementation": f"{__name__}:Path"})

    assert Subject(name="own", declaration=declaration).root == Path(__file__)


def test_line_is_the_innermost_of_the_backend() -> None:
    """Of a traceback the backend's own last line counts, and none where it has none."""
    with pytest.raises(AttributeError) as caught:
        HONEST.build(object())  # type: ignore[arg-type] # no pools: its constructor raises
    with pytest.raises(AttributeError) as elsewhere:
        HONEST.no_such_name  # type: ignore[attr-defined] # noqa: B018 - raises here

    site = HONEST.line_in(caught.tb)

    assert site is not None
    assert Path(site.file).name == "paged.py"
    assert HONEST.line_in(elsewhere.tb) is None
