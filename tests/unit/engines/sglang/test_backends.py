from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps import Declaration, HostSeqLens, Origin, Part, RuleSet, Source, flips, resolve
from backend_caps.capability.backend import Backend, EngineClass, Reading, Status
from backend_caps.engines.sglang.read import pair_of
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.uses import PAIR
from tests.unit.building import OPTS_OUT, SPECULATING, flags, installed, named
from tests.unit.engines.sglang.building import ATTENTION, IMPORTS, class_of, codes, read, read_class
from tests.unit.engines.tables import table

TWO = "class Two(AttentionBackend):\n    "
IN_INIT = "class Two(AttentionBackend):\n    def __init__(self, runner, x):\n        "


@table("sglang_backends", "constant_is_declared")
def test_constant_is_declared(tmp_path: Path, body: str, value: str) -> None:
    """A class that gives the flag True or False has declared it."""
    read = read_class(tmp_path, body)

    assert (read.needs.origin, read.needs.value) == (Origin.DECLARED, value)
    assert read.declaration.capabilities.host_seq_lens is HostSeqLens(value)


@table("sglang_backends", "value_that_depends_is_conditional")
def test_value_that_depends_is_conditional(
    tmp_path: Path, body: str, base: bool | None, cases: list[tuple[str, bool]]
) -> None:
    """What decides is a condition of the declaration, and the value of the reading is open."""
    read = read_class(tmp_path, body)

    stated = read.declaration.capabilities.stated()
    assert (read.needs.origin, read.needs.value) == (Origin.CONDITIONAL, None)
    assert read.cases == cases
    assert ("host_seq_lens" in stated) == (base is not None)
    assert base is None or read.declaration.capabilities.needs_cpu_seq_lens is base


def test_reason_of_a_condition_is_in_the_words_of_the_source(tmp_path: Path) -> None:
    """A condition says which value the flag has, and where."""
    read = read_class(tmp_path, IN_INIT + "self.needs_cpu_seq_lens = x.reads()")

    reasons = [when.reason for when in read.declaration.conditions]
    assert reasons[0] == "needs_cpu_seq_lens is True where x.reads()"


@table("sglang_backends", "value_that_is_no_bool_is_undeclared")
def test_value_that_is_no_bool_is_undeclared(tmp_path: Path, body: str, words: str) -> None:
    """What is neither True nor False declares nothing, and the reading says what it is."""
    read = read_class(tmp_path, body)

    assert read.needs.origin is Origin.UNDECLARED
    assert read.needs.words == f"{words}, which is neither True nor False"
    assert "host_seq_lens" not in read.declaration.capabilities.stated()


def test_value_that_is_no_bool_is_a_problem(tmp_path: Path) -> None:
    """The problem has the place and the statement."""
    two = {f"{ATTENTION}/two.py": IMPORTS + TWO + "needs_cpu_seq_lens = 'no'\n"}

    reading = read(tmp_path, two)

    assert codes(reading) == ["engine-value-not-bool"]
    assert reading.problems[0].message == (
        f"{ATTENTION}/two.py:4: needs_cpu_seq_lens = 'no', which is neither True nor False; "
        "the engine takes its truth."
    )


def test_inherited_value_is_reported_and_not_declared(tmp_path: Path) -> None:
    """What a base below the root says is read with its class and line, and declares nothing."""
    read = read_class(
        tmp_path,
        """
        class Base(AttentionBackend):
            needs_cpu_seq_lens = False

        class Two(Base):
            pass
        """,
    )

    assert read.declaration.capabilities.stated() == {}
    assert (read.needs.origin, read.needs.inherited_from) == (Origin.INHERITED, "Base")
    assert (read.needs.value, read.needs.declared_at) == ("none", f"{ATTENTION}/two.py:5")


def test_default_of_the_root_is_undeclared(tmp_path: Path) -> None:
    """A class that leaves the base class's default has said nothing."""
    read = read_class(tmp_path, TWO + "pass")

    assert (read.needs.origin, read.needs.value) == (Origin.UNDECLARED, None)
    assert read.needs.words == (
        "the base class says needs_cpu_seq_lens = True, and no other class states it"
    )


def test_class_below_nothing_that_states_the_flag_has_no_reading_of_it(tmp_path: Path) -> None:
    """Where not even the base class has the flag, there are no words for it."""
    base = "class AttentionBackend:\n    pass\n"
    two = {
        f"{ATTENTION}/two.py": IMPORTS + TWO + "pass\n",
        f"{ATTENTION}/base_attn_backend.py": base,
    }

    found = class_of(read(tmp_path, two), "Two")

    assert set(found.engine_class.readings) == {"max_context_len_known"}


def test_constructor_that_calls_no_other_has_what_it_sets_itself(tmp_path: Path) -> None:
    """What a base's constructor sets is not there where that constructor does not run."""
    read = read_class(
        tmp_path,
        """
        class Base(AttentionBackend):
            def __init__(self, runner):
                self.needs_cpu_seq_lens = False
                self.max_context_len = runner.context_len

        class Two(Base):
            def __init__(self, runner):
                self.runner = runner
        """,
    )

    origins = {name: each.origin for name, each in read.engine_class.readings.items()}
    assert origins == {
        "host_seq_lens": Origin.UNDECLARED,
        "max_context_len_known": Origin.UNDECLARED,
    }


def test_opt_out_of_a_base_is_not_the_classes_own_where_it_adds_a_condition(tmp_path: Path) -> None:
    """A class that adds to its base's value has stated what it adds, and no more."""
    read = read_class(
        tmp_path,
        """
        class Base(AttentionBackend):
            needs_cpu_seq_lens = False

        class Two(Base):
            def __init__(self, pool):
                self.needs_cpu_seq_lens |= pool.is_split
        """,
    )

    assert "host_seq_lens" not in read.declaration.capabilities.stated()
    assert read.cases == [("pool.is_split", True)]
    assert read.needs.words == (
        "Base: needs_cpu_seq_lens = False; needs_cpu_seq_lens |= pool.is_split"
    )


def test_need_of_a_base_is_kept_and_its_opt_out_is_not(tmp_path: Path) -> None:
    """Of what a base's constructor says under conditions, only a need is passed on."""
    read = read_class(
        tmp_path,
        """
        class Base(AttentionBackend):
            def __init__(self, x):
                if x.reads():
                    self.needs_cpu_seq_lens = True
                if x.skips():
                    self.needs_cpu_seq_lens = False

        class Two(Base):
            needs_cpu_seq_lens = True
        """,
    )

    assert read.declaration.capabilities.needs_cpu_seq_lens is True
    assert read.cases == [("x.reads()", True)]


def test_draft_needs_no_longest_context(tmp_path: Path) -> None:
    """The condition for drafts says why: the tree mask has the target's size."""
    (when,) = read_class(tmp_path, TWO + "pass").declaration.conditions
    assert str(when.given) == "role in draft, draft_extend"
    assert when.capabilities.stated() == {"max_context_len_known": True}
    assert when.reason == "SGLang sizes the tree mask by the target's backend alone"


def test_flags_of_the_engine_that_a_class_sets_are_read(tmp_path: Path) -> None:
    """Flags without a capability of ours come with their values, and whence they come."""
    read = read_class(
        tmp_path,
        """
        class Base(AttentionBackend):
            is_quick = True

        class Two(Base):
            draws_tails = True
            step_state = None

            def __init__(self, runner):
                self.longest_graph = runner.longest

            def support_triton(self):
                return False
        """,
    )

    told = {
        name: (each.origin, each.value, each.inherited_from)
        for name, each in read.engine_class.attributes.items()
    }
    assert told == {
        "draws_tails": (Origin.DECLARED, True, None),
        "is_quick": (Origin.INHERITED, True, "Base"),
        "longest_graph": (Origin.CONDITIONAL, None, None),
        "support_triton": (Origin.DECLARED, False, None),
    }


def test_wrapper_says_how_it_asks_its_children(tmp_path: Path) -> None:
    """A composite's words are the expressions that ask other backends."""
    read = read_class(
        tmp_path,
        """
        class Two(AttentionBackend):
            def __init__(self, inner):
                self.needs_cpu_seq_lens = inner.needs_cpu_seq_lens

            def shared_read_ends(self, mode):
                return self.inner.shared_read_ends(mode)
        """,
    )

    assert read.engine_class.composite == (
        "needs_cpu_seq_lens = inner.needs_cpu_seq_lens; "
        "shared_read_ends = self.inner.shared_read_ends(mode)"
    )


def test_class_in_a_function_has_a_pointer_through_it(tmp_path: Path) -> None:
    """The implementation of an inner class names the function that it stands in."""
    read = read_class(
        tmp_path,
        """
        def make():
            class Two(AttentionBackend):
                pass
            return Two
        """,
    )

    assert read.declaration.implementation == "sglang.srt.layers.attention.two:make.Two"


@pytest.mark.parametrize(
    "name", [pytest.param("more-classes", id="a dash"), pytest.param("mo\x1bre", id="a control")]
)
def test_class_of_a_file_that_no_import_names_has_no_pointer(tmp_path: Path, name: str) -> None:
    """It is read like any other, and its declaration points at nothing."""
    reading = read(tmp_path, {f"{ATTENTION}/{name}.py": IMPORTS + TWO + "pass\n"})

    assert class_of(reading, "Two").declaration.implementation is None


_PATH = "sglang.srt.layers.attention.hybrid_attn_backend.HybridAttnBackend"
_SOURCE = Source(distribution="sglang", version="0.5.13", declared_at="hybrid.py:12")
_PAIR = f"--prefill-attention-backend fa3 --decode-attention-backend mla {SPECULATING}"


def _wrapper(path: str = _PATH, origin: Origin | None = Origin.UNDECLARED) -> Backend:
    readings = {} if origin is None else {"host_seq_lens": Reading(origin=origin, words="")}
    return Backend(
        name="HybridAttnBackend",
        status=Status.OK,
        source=_SOURCE,
        declaration=Declaration(),
        engine_class=EngineClass(path=path, readings=readings),
    )


@pytest.mark.parametrize(
    ("backend", "has_record"),
    [
        pytest.param(_wrapper(), True, id="undeclared"),
        pytest.param(_wrapper(origin=None), True, id="nothing at all"),
        pytest.param(_wrapper(origin=Origin.CONDITIONAL), False, id="a rule of its own"),
        pytest.param(_wrapper(path="sglang.Other"), False, id="another class"),
        pytest.param(installed("fa3"), False, id="a plugin"),
    ],
)
def test_pair_has_a_record_where_its_wrapper_says_nothing(
    backend: Backend, has_record: bool
) -> None:
    """Only a wrapper without a rule is a backend of its own."""
    record = Backend(
        name=PAIR,
        status=Status.OK,
        source=_SOURCE,
        declaration=Declaration(parts=[Part("HybridAttnBackend")]),
    )

    assert list(pair_of([backend])) == ([record] if has_record else [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(_PAIR, HostSeqLens.EXACT, id="a pair"),
        pytest.param(f"--attention-backend fa3 {SPECULATING}", HostSeqLens.NONE, id="one backend"),
    ],
)
def test_pair_counts_as_its_wrapper_says(line: str, expected: HostSeqLens) -> None:
    """Both opt out, and the wrapper that runs them has the base class's need."""
    backends = [installed("fa3", OPTS_OUT), installed("mla", OPTS_OUT), _wrapper()]
    known = named(*backends, *pair_of(backends))
    read = flags(line)

    plan = resolve(uses_of(read, known), read, rules=RuleSet.builtin("sglang-0.5.13"))

    assert plan["host_seq_lens"].value is expected


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param(_PAIR, [["Set --prefill-attention-backend mla."]], id="by name"),
        pytest.param(f"--prefill-attention-backend fa3 {SPECULATING}", [], id="by default"),
    ],
)
def test_pair_is_undone_by_one_backend_for_both(line: str, told: list[list[str]]) -> None:
    """Where the wrapper alone stands in the way, it is what has to go."""
    backends = [installed("fa3", OPTS_OUT), installed("mla", OPTS_OUT), _wrapper()]
    known = named(*backends, *pair_of(backends))
    read = flags(line)

    found = flips(
        resolve(uses_of(read, known), read, rules=RuleSet.builtin("sglang-0.5.13")), known, read
    )

    mirror = [flip for flip in found if flip.capability == "host_seq_lens"]
    assert [[remedy.text for remedy in flip.remedies] for flip in mirror] == told


def test_name_that_the_engine_lacks_is_reported_both() -> None:
    """Beside an engine, neither it nor a plugin has what is missing."""
    use, *_ = uses_of(flags("--attention-backend quite_another"), named(_wrapper()))

    assert use.problem is not None
    assert use.problem.message == (
        "neither the engine nor a plugin has backend 'quite_another' (--attention-backend)."
    )


_WITHOUT = "def forward_decode(self, q, k, v, layer, batch, save_kv_cache=True):\n        pass"


@pytest.mark.parametrize(
    ("forward", "stated"),
    [
        pytest.param(_WITHOUT, {"attention_sinks": False}, id="no argument"),
        pytest.param(_WITHOUT.replace("True)", "True, sinks=None)"), {}, id="an argument"),
        pytest.param(_WITHOUT.replace("True)", "True, *, sinks=None)"), {}, id="by name alone"),
        pytest.param(_WITHOUT.replace("True)", "True, **kwargs)"), {}, id="any argument"),
    ],
)
def test_forward_without_sinks_does_not_support_them(
    tmp_path: Path, forward: str, stated: dict[str, object]
) -> None:
    """A forward that a layer cannot hand sinks to is a statement; one that it can is none."""
    read = read_class(tmp_path, f"{TWO}{forward}")

    assert read.declaration.capabilities.stated() == stated


def test_forward_of_a_parent_is_inherited(tmp_path: Path) -> None:
    """A forward without sinks that only a parent has is shown as inherited."""
    three = read_class(tmp_path, f"{TWO}{_WITHOUT}\n\nclass Three(Two):\n    pass\n", "Three")

    sinks = three.engine_class.readings["attention_sinks"]
    assert (sinks.origin, sinks.inherited_from) == (Origin.INHERITED, "Two")
    assert sinks.words == "forward_decode() has no argument sinks"
    assert three.declaration.capabilities.stated() == {}


_REFUSES = "class Two(AttentionBackend):\n    def __init__(self, runner, topk):\n        "


@pytest.mark.parametrize(
    ("body", "stated"),
    [
        pytest.param("if topk > 1:\n            raise ValueError('one')", 1, id="more than one"),
        pytest.param("if topk != 4:\n            raise ValueError('four')", 4, id="another one"),
        pytest.param(
            "if topk > 8:\n            runner.log()\n            raise OSError", 8, id="log"
        ),
        pytest.param("if topk > 1:\n            runner.log()", None, id="it goes on"),
        pytest.param("if topk < 2:\n            raise ValueError('two')", None, id="fewer"),
        pytest.param("if runner > 1:\n            raise ValueError('one')", None, id="not of it"),
    ],
)
def test_branches_that_a_constructor_refuses_are_declared(
    tmp_path: Path, body: str, stated: int | None
) -> None:
    """The most branches that a container drafts with are those that it does not refuse."""
    read = read_class(tmp_path, f"{_REFUSES}{body}\n")

    expected = {} if stated is None else {"max_speculative_topk": stated}
    assert read.declaration.capabilities.stated() == expected
    assert ("max_speculative_topk" in read.engine_class.readings) is (stated is not None)


def test_branches_that_a_parent_refuses_are_inherited(tmp_path: Path) -> None:
    """A refusal of a parent's constructor is shown with its line, and declares nothing."""
    refuses = f"{_REFUSES}if topk > 1:\n            raise ValueError('one')\n"
    three = read_class(tmp_path, f"{refuses}\nclass Three(Two):\n    pass\n", "Three")

    branches = three.engine_class.readings["max_speculative_topk"]
    assert (branches.origin, branches.inherited_from) == (Origin.INHERITED, "Two")
    assert (branches.words, branches.value) == ("__init__() refuses topk > 1", 1)
    assert branches.declared_at == f"{ATTENTION}/two.py:5"
    assert three.declaration.capabilities.stated() == {}
