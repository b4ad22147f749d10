"""What a reading of an engine changes: whose flags and rules hold, and what an inheritor is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps.capability.backend import Reading
from backend_caps.capability.declaration import Part
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import AttentionArch, Capabilities, HostSeqLens
from backend_caps.discovery.registry import Registry
from backend_caps.resolution.engine import Engine
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.uses import uses_of
from tests.unit.building import OPTS_OUT, READS, SPECULATING, flags, installed, named, use

_ENGINE = Engine(
    name="sglang-9.9",
    options={"--page-size": ("--page-size", "--pages"), "--pages": ("--page-size", "--pages")},
    attention_backends=frozenset(),
)
"""One that no stored version is, with an alias that none has."""


def test_flags_follow_an_engine_that_was_read(tmp_path: Path) -> None:
    """A command line, a mapping and a file are read as the engine's own source says."""
    file = tmp_path / "flags.yaml"
    file.write_text("pages: 16\n")

    read = [
        ServerFlags.from_argv(["--pages", "16"], engine_name=_ENGINE),
        ServerFlags.from_mapping({"pages": 16}, engine_name=_ENGINE),
        ServerFlags.from_file(file, engine_name=_ENGINE),
    ]

    assert read == [ServerFlags(page_size=16)] * 3


def test_registry_adds_rules_to_a_set_that_is_given() -> None:
    """Rules of third parties come after those of a rule set that is no built-in one."""
    own = replace(RuleSet.builtin("sglang-0.5.23"), name="sglang-9.9")
    rule = own.rules[0]
    mine = rule.model_copy(update={"engines": {"sglang-9.9"}})
    other = rule.model_copy(update={"engines": {"sglang-0.5.13"}})

    rules = Registry.of((), rules=(other, mine)).rules(own)

    assert rules.rules == (*own.rules, mine)


_INHERITED = Reading(origin=Origin.INHERITED, words="needs = False")
_SAYS = "inherits needs = False{}, and does not state it again: counts as undeclared"


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (_INHERITED, _SAYS.format("")),
        (replace(_INHERITED, inherited_from="Triton"), _SAYS.format(" of Triton")),
        (replace(_INHERITED, origin=Origin.UNDECLARED), "does not declare host_seq_lens"),
    ],
    ids=["from somewhere", "from a class", "not at all"],
)
def test_inherited_opt_out_counts_as_undeclared(reading: Reading, reason: str) -> None:
    """A class that leaves the opt-out to its base needs the lengths, and the cause says so."""
    own = use("A", Capabilities(max_context_len_known=True))
    read = replace(own, readings={"host_seq_lens": reading})

    (cause,) = resolve([read], flags(SPECULATING))["host_seq_lens"].causes

    assert (cause.value, cause.reason) == (HostSeqLens.EXACT, reason)
    assert cause.origin is reading.origin


_EXACT, _NONE = "declares host_seq_lens=exact", "declares host_seq_lens=none"
_WHERE = "(used where attention_arch = {}: not known yet)"


@pytest.mark.parametrize(
    ("facts", "reasons"),
    [
        (Facts(), [f"{_EXACT} {_WHERE.format('mla')}", f"{_NONE} {_WHERE.format('mha')}"]),
        (Facts(attention_arch=AttentionArch.MHA), [_NONE]),
    ],
    ids=["open", "decided"],
)
def test_cause_says_that_its_class_is_not_certain(facts: Facts, reasons: list[str]) -> None:
    """Where a name may stand for either of two classes, both count and say why."""
    mha = Part("a", given=Given(attention_arch={AttentionArch.MHA}))
    mla = Part("b", given=Given(attention_arch={AttentionArch.MLA}))
    backends = named(
        installed("a", OPTS_OUT), installed("b", READS), installed("either", parts=[mha, mla])
    )
    read = flags(f"--attention-backend either {SPECULATING}")

    plan = resolve(uses_of(read, backends), read, facts=facts)

    assert list(dict.fromkeys(c.reason for c in plan["host_seq_lens"].causes)) == reasons
