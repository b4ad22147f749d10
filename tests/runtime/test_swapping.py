"""Another backend in a running engine: it goes on by a plan of its own, or refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps import (
    Capabilities,
    Exact,
    Facts,
    Given,
    HostSeqLens,
    Phase,
    Plan,
    Role,
    Rule,
    ServerFlags,
    Use,
    discover,
    resolve,
)
from backend_caps.resolution.selection import plan_for
from backend_caps.runtime import Engine, EngineOptions, Sampling
from backend_caps.runtime.errors import BackendSwapError, UnfitBackendError
from backend_caps.runtime.model import random_llama
from backend_caps.runtime.model.drafts import first_layers
from backend_caps.startup.implementation import ImplementationError
from tests.runtime.engines import plan_of

EAGER = EngineOptions(graph_batch_sizes=(), max_running_requests=4)
PROMPTS = [[place * 7 % 64 for place in range(size)] for size in (3, 9, 1, 14)]
SPECULATIVE = ("--speculative-algorithm", "STANDALONE", "--disable-piecewise-cuda-graph")
PADDED = ("--attention-backend", "torch_padded")
NATIVE = ("--attention-backend", "torch_native")
BOTH_HALVES = ("--enable-two-batch-overlap",)
MIRROR = Rule(
    name="mirror",
    given=Given(enable_dp_attention=False),
    forces=Capabilities(needs_cpu_seq_lens=True),
    reason="the test keeps one",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a target, and a draft of its first layer."""
    folder = tmp_path_factory.mktemp("swapping")
    target, draft = folder / "target", folder / "draft"
    random_llama(target, vocab_size=64, hidden_size=32, later_gain=0.2)
    first_layers(draft, target)
    return target, draft


def _engine(folders: tuple[Path, Path], *arguments: str) -> Engine:
    return _engine_of(folders, plan_of(*SPECULATIVE, *arguments))


def _with_mirror(folders: tuple[Path, Path], *arguments: str) -> Engine:
    """Make an engine whose relay brings lengths to the host, whatever its backends need."""
    plan = plan_of(*SPECULATIVE, *arguments)
    rules = plan.rules.with_rules([MIRROR])
    return _engine_of(folders, resolve(plan.uses, plan.flags, rules=rules, policy="quiet"))


def _engine_of(folders: tuple[Path, Path], plan: Plan) -> Engine:
    target, draft = folders
    return Engine.from_plan(target, plan, "cpu", options=EAGER, draft_model_path=draft)


def _uses(*arguments: str) -> tuple[Use, ...]:
    return plan_of(*SPECULATIVE, *arguments).uses


def _in(uses: Iterable[Use], role: Role) -> Sequence[Use]:
    return [use for use in uses if use.role is role]


def _paged(uses: Iterable[Use], page_size: int) -> Sequence[Use]:
    only = {"page_sizes": Exact(page_size)}
    found = [(use, use.declaration) for use in uses if use.declaration is not None]
    narrowed = [(use, own, own.capabilities.model_copy(update=only)) for use, own in found]
    return [
        replace(use, declaration=own.model_copy(update={"capabilities": paged}))
        for use, own, paged in narrowed
    ]


def test_every_backend_that_runs_is_named(folders: tuple[Path, Path]) -> None:
    """A speculating engine names the backends of target, draft and draft-extend, each phase's."""
    engine = _engine(folders, *PADDED, "--speculative-draft-attention-backend", "torch_native")

    named = {(use.role, use.phase, use.backend) for use in engine.spec_v2_attn_backends}

    assert named == {
        (Role.TARGET, Phase.PREFILL, "torch_padded"),
        (Role.TARGET, Phase.DECODE, "torch_padded"),
        (Role.TARGET, Phase.VERIFY, "torch_padded"),
        (Role.DRAFT, Phase.PREFILL, "torch_native"),
        (Role.DRAFT, Phase.DECODE, "torch_native"),
        (Role.DRAFT_EXTEND, Phase.VERIFY, "torch_native"),
    }


def test_plain_engine_names_its_targets_alone(folders: tuple[Path, Path]) -> None:
    """Without a draft model there is no backend of one."""
    engine = Engine.from_plan(folders[0], plan_of(*PADDED), "cpu", options=EAGER)

    roles = {use.role for use in engine.spec_v2_attn_backends}

    assert roles == {Role.TARGET}


@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.value)
def test_backend_that_needs_the_mirror_is_refused_where_there_is_none(
    folders: tuple[Path, Path], role: Role
) -> None:
    """A relay made for backends that opted out is no relay for one that did not."""
    engine = _engine(folders, *PADDED)
    before = engine.plan

    with pytest.raises(BackendSwapError, match="'torch_native' needs host_seq_lens 'exact'"):
        engine.swap_backends(_in(_uses(*NATIVE), role))

    assert engine.plan is before


def test_swap_in_the_middle_changes_no_token(folders: tuple[Path, Path]) -> None:
    """With a mirror either backend may run, and requests go on where they are."""
    engine = _with_mirror(folders, *PADDED, *BOTH_HALVES)
    whole = _engine(folders, *PADDED).generate(PROMPTS, 16)
    requests = [engine.submit(own, Sampling(max_new_tokens=16)) for own in PROMPTS]
    for _ in range(4):
        engine.step()

    engine.swap_backends(_uses(*NATIVE, *BOTH_HALVES))
    engine.drain()

    assert [own.output for own in requests] == whole
    assert {use.backend for use in engine.spec_v2_attn_backends} == {"torch_native"}


def test_swap_resolves_the_plan_anew(folders: tuple[Path, Path]) -> None:
    """The plan behind a swap has the new backends' causes."""
    engine = _engine(folders, *NATIVE)

    plan = engine.swap_backends(_uses(*PADDED))

    names = {cause.name for cause in plan["host_seq_lens"].causes}
    assert (engine.plan, names) == (plan, {"torch_padded"})


def test_swap_keeps_what_was_overridden(folders: tuple[Path, Path]) -> None:
    """A value that was put in place of the joined one stays there when backends change."""
    target, draft = folders
    plan = plan_of(*SPECULATIVE, *PADDED)
    forced = resolve(
        plan.uses,
        plan.flags,
        rules=plan.rules,
        policy="quiet",
        unsafe_override=Capabilities(host_seq_lens=HostSeqLens.EXACT),
    )
    engine = Engine.from_plan(target, forced, "cpu", options=EAGER, draft_model_path=draft)

    swapped = engine.swap_backends(_in(_uses(*PADDED), Role.DRAFT))

    assert (swapped.host_seq_lens, swapped.overrides) == (HostSeqLens.EXACT, forced.overrides)


def test_swap_to_fewer_needs_keeps_what_is_supplied(folders: tuple[Path, Path]) -> None:
    """A relay that brings lengths to the host goes on doing so, and a swap back is served."""
    engine = _engine(folders, *NATIVE)
    engine.swap_backends(_uses(*PADDED))

    engine.swap_backends(_uses(*NATIVE))

    assert {use.backend for use in engine.spec_v2_attn_backends} == {"torch_native"}


def test_tree_is_not_handed_to_a_backend_of_chains(folders: tuple[Path, Path]) -> None:
    """A backend that takes fewer candidates than the trees have is refused, with its words."""
    tree = ("--speculative-eagle-topk", "4")
    engine = _with_mirror(folders, *PADDED, *tree)

    with pytest.raises(BackendSwapError, match="--speculative-eagle-topk is 4"):
        engine.swap_backends(_uses(*NATIVE, *tree))


def test_backend_of_other_pages_is_refused(folders: tuple[Path, Path]) -> None:
    """The cache has its pages already, so a backend that takes others is not put in."""
    plan = plan_of(*PADDED)
    engine = Engine.from_plan(folders[0], plan, "cpu", options=EAGER)

    with pytest.raises(UnfitBackendError, match="takes page_size 64; here it is 1"):
        engine.swap_backends(_paged(plan.uses, 64))

    assert engine.plan is plan


def test_use_that_the_plan_does_not_have_is_refused(folders: tuple[Path, Path]) -> None:
    """A plain engine has no place for a draft's backend."""
    engine = Engine.from_plan(folders[0], plan_of(*NATIVE), "cpu", options=EAGER)

    with pytest.raises(BackendSwapError, match="no use of draft decode, draft prefill"):
        engine.swap_backends(_in(_uses(*NATIVE), Role.DRAFT))


def test_use_that_nobody_read_is_refused(folders: tuple[Path, Path]) -> None:
    """A use by a name alone says nothing of what its backend needs."""
    engine = _engine(folders, *NATIVE)
    unread = replace(engine.spec_v2_attn_backends[0], backend="nope", declaration=None)

    with pytest.raises(BackendSwapError, match="nobody read a declaration of 'nope'"):
        engine.swap_backends([unread])


def test_swap_that_cannot_be_built_changes_nothing(folders: tuple[Path, Path]) -> None:
    """Where one of several backends has no implementation, none of them is put in."""
    engine = _engine(folders, *NATIVE)
    hollow = [
        Use(
            backend=use.backend,
            role=use.role,
            phase=use.phase,
            declaration=use.declaration.model_copy(update={"implementation": "no.module:Here"}),
        )
        for use in _in(_uses(*PADDED), Role.DRAFT_EXTEND)
        if use.declaration is not None
    ]

    with pytest.raises(ImplementationError):
        engine.swap_backends([*_in(_uses(*PADDED), Role.TARGET), *hollow])

    assert {use.backend for use in engine.spec_v2_attn_backends} == {"torch_native"}


def test_swap_keeps_the_backends_that_stay(folders: tuple[Path, Path]) -> None:
    """A backend that nobody swaps is the same object behind a swap, with all that it holds."""
    engine = Engine.from_plan(folders[0], plan_of(*NATIVE), "cpu", options=EAGER)
    before = engine.backends.of(Phase.DECODE)
    prefill = [use for use in plan_of(*PADDED).uses if use.phase is Phase.PREFILL]

    engine.swap_backends(prefill)

    assert engine.backends.of(Phase.DECODE) is before
    assert engine.backends.of(Phase.PREFILL) is not before


def test_swap_makes_a_backend_anew_that_declares_otherwise(folders: tuple[Path, Path]) -> None:
    """A backend of the same name with another declaration is another one."""
    plan = plan_of(*NATIVE)
    engine = Engine.from_plan(folders[0], plan, "cpu", options=EAGER)
    before = engine.backends.of(Phase.DECODE)

    engine.swap_backends(_paged(plan.uses, 1))

    assert engine.backends.of(Phase.DECODE) is not before


@pytest.mark.parametrize(
    ("swapped", "left"),
    [
        pytest.param((), ("prefill", "decode"), id="none"),
        pytest.param((Phase.PREFILL,), ("decode",), id="one"),
        pytest.param((Phase.PREFILL, Phase.DECODE), (), id="both"),
    ],
)
def test_swap_keeps_the_choices_that_hold(
    folders: tuple[Path, Path], swapped: tuple[Phase, ...], left: tuple[str, ...]
) -> None:
    """What auto chose stays in the plan while what it chose runs."""
    auto = [f"--{phase}-attention-backend=auto" for phase in ("prefill", "decode")]
    flags = ServerFlags.from_argv(auto)
    plan = plan_for(discover(), flags, facts=Facts(device="cpu"), policy="quiet")
    engine = Engine.from_plan(folders[0], plan, "cpu", options=EAGER)
    others = [use for use in plan_of(*PADDED).uses if use.phase in swapped]

    new = engine.swap_backends(others)

    assert [own.flag for own in new.choices] == [f"--{own}-attention-backend" for own in left]
