"""What an engine makes of a command line, in a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.facts import Facts
from backend_caps.capability.kind import Phase
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import AttentionArch, Capabilities, HostSeqLens
from backend_caps.resolution.flips import flips
from backend_caps.resolution.launch import Launch, LayerGroup, Refusal, Unchecked
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from tests.unit.building import OPTS_OUT, READS, RULES_23, flags, installed, named, use

_REFUSAL = Refusal(message="fa3 is for SM 9", at="sglang/a.py:3")
_UNCHECKED = Unchecked(message="it may be missing", at="sglang/b.py:4", unless="find_spec('x')")


def _launch(refusal: Refusal | None = None, *unchecked: Unchecked) -> Launch:
    return Launch(
        engine="sglang-9.0",
        machine="H100",
        model="m",
        refusal=refusal,
        unchecked=unchecked,
        flags={"attention_backend": "fa3", "page_size": 64},
        facts={"attention_arch": "mla", "head_size": 128},
    )


@pytest.mark.parametrize(
    ("launch", "starts", "codes"),
    [
        pytest.param(_launch(), True, [], id="accepted"),
        pytest.param(_launch(_REFUSAL), False, ["engine-refuses"], id="refused"),
        pytest.param(
            _launch(None, _UNCHECKED), None, ["engine-start-not-checked"], id="not checked"
        ),
    ],
)
def test_plan_has_the_problems_of_its_launch(
    launch: Launch, starts: bool | None, codes: list[str]
) -> None:
    """A refusal, or what is not known of one, is a problem of the plan."""
    plan = resolve([use("fa3", OPTS_OUT)], flags(), rules=RULES_23, launch=launch)

    assert launch.starts is starts
    assert [each.code for each in plan.problems if each.code.startswith("engine-")] == codes


def test_refusal_is_in_the_engines_words() -> None:
    """The problem has the engine's message, file and line."""
    [problem] = _launch(_REFUSAL).problems()

    assert problem.message == (
        "sglang-9.0 does not start m on H100: fa3 is for SM 9 (sglang/a.py:3)"
    )


def test_final_values_go_before_those_that_were_given() -> None:
    """Flags are the engine's final ones; a fact that is given stays."""
    launch = _launch()

    assert launch.over(flags("--page-size 1 --tp 2")).page_size == 64
    facts = launch.with_facts(Facts(attention_arch=AttentionArch.MHA))
    assert (facts.attention_arch, facts.head_size) == (AttentionArch.MHA, 128)


def _class(
    name: str, origin: Origin | None = None, capabilities: Capabilities | None = None
) -> Backend:
    """A class of an engine, with what its source says of host lengths."""
    reading = (
        None if origin is None else Reading(origin=origin, words="True", inherited_from="Root")
    )
    readings = {} if reading is None else {"host_seq_lens": reading}
    engine_class = EngineClass(path=f"engine.{name}", readings=readings)
    return replace(installed(name, capabilities or Capabilities()), engine_class=engine_class)


_CLASSES = named(
    _class("Lean", Origin.DECLARED, OPTS_OUT),
    _class("Reads", Origin.DECLARED, READS),
    _class("Unbounded", Origin.DECLARED, Capabilities(needs_cpu_seq_lens=False)),
    _class("Joins", Origin.CONDITIONAL),
    _class("Inherits", Origin.INHERITED),
    _class("Bare", Origin.UNDECLARED),
    installed("lean", parts=[Part("Lean")]),
)
_SPECULATING = "--attention-backend lean --speculative-algorithm DFLASH"


def _constructed(line: str, **classes: str) -> list[tuple[str, str, str]]:
    found = uses_of(flags(line), _CLASSES, _with_classes(**classes))
    return [(each.role.value, each.phase.value, each.backend) for each in found]


def _with_classes(**classes: str) -> Launch:
    paths = {
        slot: tuple(f"engine.{name}" for name in names.split()) for slot, names in classes.items()
    }
    wrappers = frozenset({"engine.Joins", "engine.Inherits", "engine.Bare"})
    return replace(_launch(), classes=paths, wrappers=wrappers)


@pytest.mark.parametrize(
    ("line", "classes", "uses"),
    [
        pytest.param(
            "--attention-backend lean",
            {"prefill": "Reads", "decode": "Lean"},
            ["target prefill Reads", "target decode Lean"],
            id="a phase each",
        ),
        pytest.param(
            "--attention-backend lean",
            {"prefill": "Joins Lean", "decode": "Inherits Lean"},
            ["target prefill Lean", "target decode Inherits", "target decode Lean"],
            id="wrappers",
        ),
        pytest.param(
            _SPECULATING,
            {
                "prefill": "Reads",
                "decode": "Lean",
                "draft_prefill": "Reads",
                "draft_extend": "Lean",
            },
            [
                *("target prefill Reads", "target decode Lean", "target verify Reads"),
                *("draft prefill Reads", "draft decode Lean", "draft_extend verify Lean"),
            ],
            id="a slot that is not followed is by name",
        ),
        pytest.param(
            f"{_SPECULATING} --speculative-attention-mode decode",
            {"prefill": "Reads", "decode": "Lean"},
            [
                *("target prefill Reads", "target decode Lean", "target verify Lean"),
                *("draft prefill Lean", "draft decode Lean", "draft_extend verify Lean"),
            ],
            id="verify as decode",
        ),
    ],
)
def test_uses_are_the_classes_that_the_engine_constructs(
    line: str, classes: dict[str, str], uses: list[str]
) -> None:
    """Where the engine's own code says what it constructs, names count no more."""
    assert [" ".join(each) for each in _constructed(line, **classes)] == uses


def test_class_that_was_not_read_counts_as_the_worst() -> None:
    """A class without a record is a problem, and the copy stays on."""
    launch = _with_classes(prefill="Lean", decode="Strange")
    line = "--attention-backend lean --speculative-algorithm NGRAM"

    plan = resolve(uses_of(flags(line), _CLASSES, launch), flags(line), rules=RULES_23)

    assert "class-not-read" in {each.code for each in plan.problems}
    assert plan["host_seq_lens"].value is HostSeqLens.EXACT


@pytest.mark.parametrize(
    ("decode", "value", "origin"),
    [
        pytest.param("Joins Lean", HostSeqLens.NONE, Origin.DECLARED, id="it asks its parts"),
        pytest.param(
            "Joins Lean Unbounded", HostSeqLens.NONE, Origin.DECLARED, id="one part has the bound"
        ),
        pytest.param("Unbounded", HostSeqLens.EXACT, Origin.UNDECLARED, id="no part has it"),
        pytest.param("Inherits Lean", HostSeqLens.EXACT, Origin.INHERITED, id="it inherits"),
        pytest.param("Bare Lean", HostSeqLens.EXACT, Origin.UNDECLARED, id="the base's own"),
    ],
)
def test_wrapper_adds_what_it_says_itself(decode: str, value: HostSeqLens, origin: Origin) -> None:
    """A wrapper that asks its parts adds nothing; one that inherits keeps the copy on."""
    line = f"{_SPECULATING} --disable-piecewise-cuda-graph"
    slots = ("prefill", "decode", "draft_prefill", "draft", "draft_extend")
    launch = _with_classes(**{**dict.fromkeys(slots, "Lean"), "decode": decode})

    plan = resolve(uses_of(flags(line), _CLASSES, launch), flags(line), rules=RULES_23)

    lengths = plan["host_seq_lens"]
    assert lengths.value is value
    assert lengths.causes[0].origin is origin


@pytest.mark.parametrize(
    ("joined", "value"),
    [
        pytest.param(set(), HostSeqLens.NONE, id="the pair asks decode alone"),
        pytest.param({"prefill"}, HostSeqLens.EXACT, id="it asks both"),
        pytest.param({"draft_prefill"}, HostSeqLens.NONE, id="the draft's asks both"),
    ],
)
def test_pair_counts_for_prefill_where_it_asks_for_it(joined: set[str], value: HostSeqLens) -> None:
    """Releases differ in whether a pair needs lengths that its part for prefill alone needs."""
    line = f"{_SPECULATING} --speculative-attention-mode decode --disable-piecewise-cuda-graph"
    slots = dict.fromkeys(("decode", "draft_prefill", "draft", "draft_extend"), "Lean")
    launch = replace(_with_classes(prefill="Reads", **slots), joined=frozenset(joined))

    plan = resolve(
        uses_of(flags(line), _CLASSES, launch), flags(line), rules=RULES_23, launch=launch
    )

    assert plan["host_seq_lens"].value is value


def test_capability_that_a_source_does_not_state_is_not_known() -> None:
    """It is neither undeclared nor none: it has no value, and makes no problem."""
    line = "--attention-backend lean --enable-two-batch-overlap"

    plan = resolve(uses_of(flags(line), _CLASSES), flags(line), rules=RULES_23)

    overlap = plan["two_batch_overlap"]
    assert (overlap.is_known, overlap.known_value, overlap.origin) == (
        False,
        None,
        Origin.NOT_KNOWN,
    )
    assert overlap.causes[0].known_value is None
    assert "two-batch-overlap-unsupported" not in {each.code for each in plan.problems}


def test_class_without_host_lengths_is_taken_for_one_that_needs_them() -> None:
    """The engine's own decision takes a missing flag for True, so the value is known."""
    silent = _class("Silent", Origin.DECLARED, OPTS_OUT)
    assert silent.engine_class is not None
    other = {"page_sizes": Reading(origin=Origin.DECLARED, words="any")}
    silent = replace(
        silent, declaration=Declaration(), engine_class=replace(silent.engine_class, readings=other)
    )
    backends = named(silent, installed("lean", parts=[Part("Silent")]))
    line = flags("--attention-backend lean --speculative-algorithm NGRAM")

    lengths = resolve(uses_of(line, backends), line, rules=RULES_23)["host_seq_lens"]

    assert (lengths.is_known, lengths.value) == (True, HostSeqLens.EXACT)


def test_plan_of_a_launch_has_no_flips() -> None:
    """What the engine would make of other flags is not known without following them."""
    launch = _with_classes(decode="Reads", prefill="Reads")
    line = flags("--attention-backend lean --speculative-algorithm NGRAM")
    plan = resolve(uses_of(line, _CLASSES, launch), line, rules=RULES_23, launch=launch)

    assert flips(plan, _CLASSES, line) == ()


def _group(
    path: str, role: str = "target", cache: str | None = "FullSpec", **own: str
) -> LayerGroup:
    return LayerGroup(
        role=role,
        layer="Attention",
        num_layers=2,
        backend=path.upper(),
        path=f"engine.{path}",
        graph_support=own.get("graphs", "UNIFORM_BATCH") if cache else None,
        cache=cache,
        sizes={},
    )


def test_layers_give_the_uses_of_a_server() -> None:
    """Each class runs its model's roles once; layers that keep nothing of a request run none."""
    launch = replace(
        _launch(),
        layers=(
            _group("A"),
            _group("A"),
            _group("B"),
            _group("C", cache=None),
            _group("Lost", role="draft"),
        ),
    )
    backends = named(_class("A"), _class("B"), _class("C"))

    uses = uses_of(flags("--speculative-algorithm EAGLE"), backends, launch)

    places = {(each.role.value, each.phase.value, each.backend) for each in uses}
    assert places == {
        *(("target", phase, name) for phase in ("prefill", "decode", "verify") for name in "AB"),
        ("draft", "prefill", "Lost"),
        ("draft", "decode", "Lost"),
        ("draft_extend", "verify", "Lost"),
    }
    assert {each.slot for each in uses} == {
        "Attention layers of the target",
        "Attention layers of the draft",
    }


def test_graphs_of_layers_are_what_the_engine_finds() -> None:
    """Its word goes before what the class states, and the cause says so."""
    launch = replace(_launch(), layers=(_group("A"), _group("B", graphs="SOMETIMES")))
    backends = named(*(_class(name, Origin.DECLARED, OPTS_OUT) for name in "AB"))

    plan = resolve(uses_of(flags(), backends, launch), flags(), rules=RULES_23, launch=launch)

    graphs = plan["graph_replay", Phase.DECODE]
    assert graphs.value == frozenset()
    assert {cause.reason for cause in graphs.causes} == {
        "the engine finds UNIFORM_BATCH for its Attention layers",
        "the engine finds SOMETIMES for its Attention layers",
    }
    assert [each.code for each in plan.problems] == []


def test_level_that_was_not_understood_is_not_known() -> None:
    """It counts as the worst, and the plan says that it is not known."""
    launch = replace(_launch(), layers=(_group("A"),))
    backends = named(_class("A", Origin.NOT_KNOWN))

    plan = resolve(uses_of(flags(), backends, launch), flags(), rules=RULES_23, launch=launch)

    lengths = plan["host_seq_lens"]
    assert (lengths.value, lengths.is_known) == (HostSeqLens.EXACT, False)
    assert {cause.reason for cause in lengths.causes} == {"True"}
