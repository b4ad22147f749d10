"""Faults put into vLLM's Triton backend, and the check that finds each.

Runs in the environment that `make upstream` builds, which has vLLM in it, with `plugins/vllm` on
the path:

    python -m tests.upstream.vllm_mutants NAME

It prints the codes of checks that failed, of the two that matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import click

from backend_caps.engines.read import read_engine
from backend_caps.kit.check import Effort, Verdict, engine_adapter
from backend_caps.kit.execution import run_checks

BACKEND = "TritonAttentionBackend"
_MODULE = "vllm.v1.attention.backends.triton_attn"
_SLOT = 64
"""A slot behind the first block, of whatever size blocks are."""
Build = Callable[..., SimpleNamespace]


class Mutant(NamedTuple):
    """A fault of the metadata builder."""

    check: str
    """The code of the check that finds it."""
    mutate: Callable[[SimpleNamespace, Any], None]
    """Changes what was built, given the description of the batch."""


def _forget_addresses(built: SimpleNamespace, common: SimpleNamespace) -> None:
    """Keep copies of the lengths, which no later batch is loaded to."""
    built.seq_lens = common.seq_lens.clone()


def _wait(built: SimpleNamespace, common: SimpleNamespace) -> None:
    """Ask the device for the longest context."""
    built.max_seq_len = int(common.seq_lens.max())


def _see_less(built: SimpleNamespace, common: SimpleNamespace) -> None:
    """Leave out the last token of each context."""
    built.seq_lens = common.seq_lens - 1


def _write_inputs(built: SimpleNamespace, common: SimpleNamespace) -> None:
    """Store the padding's tokens in a block that is not the padding's."""
    del built
    common.slot_mapping.masked_fill_(common.slot_mapping < 0, _SLOT)


MUTANTS: Mapping[str, Mutant] = {
    "addresses": Mutant("replay", _forget_addresses),
    "waits": Mutant("sync-free-prepare", _wait),
    "lengths": Mutant("numerics", _see_less),
    "padding": Mutant("padding-harmless", _write_inputs),
}
"""By name."""


def failed(name: str) -> list[str]:
    """Put a fault into vLLM's builder, and return the checks that fail."""
    adapter = engine_adapter("vllm")
    subject = adapter.subject(read_engine("vllm").registry, BACKEND)
    builder = import_module(_MODULE).TritonAttentionMetadataBuilder
    plain: Build = builder.build

    def build(self: object, prefix: int, common: SimpleNamespace, **more: object) -> object:
        built = plain(self, prefix, common, **more)
        MUTANTS[name].mutate(built, common)
        return built

    builder.build = build
    checks = [check for check in adapter.checks if check.code == MUTANTS[name].check]
    results = run_checks(subject, checks, effort=Effort.quick())
    return [own.check.code for own in results.checks if own.status is Verdict.FAILED]


if __name__ == "__main__":
    click.echo(" ".join(failed(sys.argv[1])))
