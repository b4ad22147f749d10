"""A container of multi-step drafting, declared by its parts."""

from __future__ import annotations

import pytest

from backend_caps import Registry, Role
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.speculation import Algorithm
from tests.runtime.composites import install, plan_of
from tests.runtime.engines import run
from tests.runtime.speculative.oracle import CONTEXT_LEN, Targets

pytestmark = pytest.mark.no_cover  # run by other tests too


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Install the composites once."""
    return install(tmp_path_factory.mktemp("composites"))


@pytest.mark.parametrize("topk", [1, 2])
def test_multi_step_draft_containers_draft(registry: Registry, targets: Targets, topk: int) -> None:
    """A container runs each draft step, draft-extend and the draft's prompts on its parts."""
    target = targets.heedful
    plan = plan_of(
        registry,
        *("--attention-backend", "torch_padded", "--context-length", str(CONTEXT_LEN)),
        *("--speculative-draft-attention-backend", "multi_step_draft"),
        *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", str(topk)),
    )
    engine = Engine.from_plan(
        target.folder, plan, "cpu", draft_model_path=target.drafts[Algorithm.EAGLE]
    )

    tokens = run(engine, target.jobs)

    assert tokens == target.tokens
    assert {use.backend for use in plan.uses if use.role is Role.DRAFT} == {
        "torch_native",
        "torch_padded",
    }
