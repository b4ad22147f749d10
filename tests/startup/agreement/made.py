"""Servers of the tests of agreement: one that all ranks start, and what one of them has instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike

from torch import distributed as dist

from backend_caps import (
    Capabilities,
    Declaration,
    Facts,
    HostSeqLens,
    Plan,
    Registry,
    Role,
    Rule,
    RuleSet,
    ServerFlags,
    Source,
    configure,
)
from backend_caps.capability.backend import Backend, Status
from backend_caps.relay import DraftShape
from backend_caps.startup.agreement import Ranks

ROLES = frozenset(Role)
READS = Capabilities(host_seq_lens=HostSeqLens.EXACT, roles=ROLES)
OPTS_OUT = Capabilities(host_seq_lens=HostSeqLens.NONE, max_context_len_known=True, roles=ROLES)
FLAGS = ServerFlags(
    attention_backend="acme",
    speculative_algorithm="EAGLE",
    speculative_eagle_topk=1,
    disable_piecewise_cuda_graph=True,
)


def registry(
    backends: Mapping[str, Capabilities] | None = None,
    *,
    version: str = "1.0",
    folder: str = "/node",
    rules: Collection[Rule] = (),
) -> Registry:
    """Make a registry of backends by what they say."""
    made = {"acme": OPTS_OUT} if backends is None else backends
    return Registry.of(
        (
            Backend(
                name=name,
                status=Status.OK,
                source=Source(
                    distribution=f"{name}-caps",
                    version=version,
                    declared_at=f"{folder}/{name}_caps.py:1",
                ),
                declaration=Declaration(capabilities=capabilities),
            )
            for name, capabilities in made.items()
        ),
        rules=rules,
    )


@dataclass(frozen=True, kw_only=True)
class Server:
    """What a rank is started with."""

    flags: ServerFlags = FLAGS
    registry: Registry = field(default_factory=registry)
    pool_size: int = 8
    device: str = "cpu"
    draft: DraftShape | None = None
    rules: str | RuleSet = "sglang-0.5.13"
    policy: str = "quiet"
    unsafe_override: Capabilities | None = None
    lock: str | PathLike[str] | None = None
    per_rank: frozenset[str] = frozenset()
    facts: Facts = field(default_factory=partial(Facts, dtype="bfloat16"))

    def start(self, group: dist.ProcessGroup | None = None, deadline_s: float = 30.0) -> Plan:
        """Configure it on this rank of a group, of all ranks unless given."""
        own = dist.group.WORLD if group is None else group
        assert own is not None, "a rank has a group"
        return configure(
            self.flags,
            pool_size=self.pool_size,
            device=self.device,
            facts=self.facts,
            draft=self.draft,
            registry=self.registry,
            rules=self.rules,
            policy=self.policy,
            unsafe_override=self.unsafe_override,
            lock=self.lock,
            group=Ranks(group=own, deadline_s=deadline_s, per_rank=self.per_rank),
        ).plan


SERVER = Server()


def flagged(**changes: object) -> Server:
    """Make the server with other flags."""
    return replace(SERVER, flags=FLAGS.updated(changes))
