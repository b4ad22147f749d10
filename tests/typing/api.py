"""A user's code, for type checkers only: the README's and the design's examples."""

from __future__ import annotations

from typing import assert_type

import torch
from backend_caps_sglang import decide_needs_cpu_seq_lens, explain_needs_cpu_seq_lens

from backend_caps import (
    UNDECLARED,
    BatchKind,
    Capabilities,
    Declaration,
    Facts,
    Flip,
    Given,
    GraphMetadata,
    HostSeqLens,
    Part,
    Phase,
    Plan,
    Registry,
    Role,
    Rule,
    RuleSet,
    Selection,
    ServerFlags,
    Use,
    When,
    configure,
    discover,
    flips,
    resolve,
    select,
)
from backend_caps.relay import DraftShape, FutureMap, RelayPayload

DECLARATION = Declaration(
    capabilities=Capabilities(
        needs_cpu_seq_lens=False,
        graph_replay={BatchKind.SINGLE_TOKEN_DECODE},
        graph_metadata=GraphMetadata.DEVICE,
        max_context_len_known=True,
        page_sizes=UNDECLARED,
    ),
    conditions=[
        When(
            given=Given(kv_cache_dtype={"fp8_e5m2"}, phase={Phase.DECODE}),
            capabilities=Capabilities(host_seq_lens=HostSeqLens.EXACT),
            reason="the fp8 path sizes its workspace on the host",
        )
    ],
    parts=(Part("flashinfer", phases={Phase.DECODE}), Part("triton", phases={Phase.PREFILL})),
    implementation="my_flash.backend:MyFlash",
)
RULE = Rule(
    name="my-rule",
    given=Given(enable_two_batch_overlap=True),
    forces=Capabilities(host_seq_lens=HostSeqLens.EXACT),
    reason="ours reads them",
)

registry = assert_type(discover(), Registry)
flags = assert_type(ServerFlags.from_argv(["--attention-backend", "my_flash"]), ServerFlags)
rules = assert_type(registry.rules("sglang-0.5.13"), RuleSet)
plan = assert_type(resolve(registry.uses(flags), flags, rules=rules, facts=Facts()), Plan)
chosen = assert_type(select(registry, flags, rules=rules, facts=Facts()), Selection)
resolve(chosen.uses(registry), chosen.flags, choices=chosen.choices)
assert_type(plan.needs_cpu_seq_lens, bool)
assert_type(plan["host_seq_lens"].value, object)
assert_type(plan["graph_replay", Phase.DECODE].value, object)
assert_type(flips(plan, registry, flags), tuple[Flip, ...])
uses = (Use(backend="my_flash", role=Role.TARGET, phase=Phase.DECODE, declaration=DECLARATION),)
resolve(uses, flags, policy="strict", unsafe_override=Capabilities(needs_cpu_seq_lens=False))

draft = DraftShape(topk=4, hidden_size=4096, dtype=torch.bfloat16)
configuration = configure(flags, pool_size=4096, device="cuda", facts=None, draft=draft)
configured, future_map = configuration.plan, configuration.future_map
assert_type(configured, Plan)
assert_type(future_map, FutureMap)
by_hand = FutureMap(
    pool_size=4096,
    device="cuda",
    host_seq_lens=HostSeqLens.EXACT,
    speculative=True,
    draft=draft,
    debug=False,
)
rows = torch.tensor([1, 2])
by_hand.publish(rows, rows)
by_hand.stash(rows, RelayPayload(rows, topk_p=None, topk_index=None, hidden_states=None))

assert_type(decide_needs_cpu_seq_lens(object(), [object(), None], rules="sglang-0.5.13"), bool)
assert_type(explain_needs_cpu_seq_lens(attn_backends=(object(),)).needs_cpu_seq_lens, bool)
