"""The registry of what is installed."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps import Declaration, Registry, RuleSet, ServerFlags, discover
from backend_caps.capability.backend import Backend
from backend_caps.capability.provenance import Problem, Source, Status
from backend_caps.discovery.registry import DiscoveryError
from tests.discovery.conftest import DECLARES, Site

RULES = """\
from backend_caps.capability.facts import Given
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.resolution.rules import Rule

RULES = [
    Rule(
        name="site-rule",
        given=Given(enable_dp_attention=True),
        forces=Capabilities(needs_cpu_seq_lens=True),
        reason="so it is here",
    )
]
"""


def backend(
    name: str, status: Status = Status.OK, *, distribution: str = "acme", version: str = "1"
) -> Backend:
    """Make a record by hand."""
    return Backend(
        name=name,
        status=status,
        source=Source(distribution=distribution, version=version),
        declaration=Declaration() if status is Status.OK else None,
    )


def test_registry_is_a_mapping_by_name() -> None:
    """A name stands for its backend, in a stable order."""
    triton, fa3 = backend("triton"), backend("fa3")

    registry = Registry.of([triton, fa3])

    assert dict(registry) == {"fa3": fa3, "triton": triton}
    assert (list(registry), len(registry)) == (["fa3", "triton"], 2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Status.BROKEN, Status.OK, Status.OK),
        (Status.CONFLICT, Status.OK, Status.OK),
        (Status.BROKEN, Status.CONFLICT, Status.CONFLICT),
    ],
)
def test_registry_looks_up_the_best_record(one: Status, other: Status, expected: Status) -> None:
    """Of several records of one name the most telling stands for it."""
    registry = Registry.of([backend("fa3", one), backend("fa3", other)])

    assert (registry["fa3"].status, len(registry.entries)) == (expected, 2)


def test_registry_has_no_name_for_what_was_skipped() -> None:
    """A skipped backend is in the entries, and not to be had by its name."""
    registry = Registry.of([backend("fa3", Status.SKIPPED)])

    assert "fa3" not in registry
    assert [entry.status for entry in registry.entries] == [Status.SKIPPED]


def test_registry_refuses_two_backends_of_one_name() -> None:
    """By hand nobody can mean two."""
    twice = [backend("fa3"), backend("fa3", distribution="zed")]

    with pytest.raises(DiscoveryError) as caught:
        Registry.of(twice)

    assert caught.value.code == "repeated-backend"
    assert str(caught.value) == (
        "backend 'fa3' is given 2 times: acme 1 and zed 1. Give each name once."
    )


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([backend("fa4")], id="name"),
        pytest.param([backend("fa3", distribution="zed")], id="distribution"),
        pytest.param([backend("fa3", version="2")], id="version"),
        pytest.param([backend("fa3", Status.BROKEN)], id="status"),
        pytest.param([], id="none"),
    ],
)
def test_registry_fingerprint_tells_other_plugins(other: list[Backend]) -> None:
    """Whoever sees other plugins has another fingerprint."""
    assert Registry.of([backend("fa3")]).fingerprint != Registry.of(other).fingerprint


def test_registry_fingerprint_passes_over_what_was_skipped() -> None:
    """A shadowed release of one machine is no difference between ranks."""
    more = Registry.of([backend("fa3"), backend("x", Status.SKIPPED)])

    assert more.fingerprint == Registry.of([backend("fa3")]).fingerprint


def test_registry_adds_rules_of_third_parties(site: Site) -> None:
    """Declared rules come after the built-in ones."""
    site.plugin("rules", RULES, group="backend_caps.rules")

    registry = site.discover()

    builtin = RuleSet.builtin("sglang-0.5.23")
    assert registry.rules("sglang-0.5.23").rules == (*builtin.rules, *registry.third_party_rules)
    assert [rule.name for rule in registry.third_party_rules] == ["site-rule"]
    assert registry.rules("sglang-0.5.13").name == "sglang-0.5.13"
    assert (registry.entries, registry.problems) == ((), ())


def test_registry_tells_rules_that_cannot_be_read(site: Site) -> None:
    """A fault in rules is the registry's: no backend can be blamed for it."""
    site.plugin("rules", "RULES = ['x']", group="backend_caps.rules")

    (problem,) = site.discover().problems
    assert (problem.code, problem.remedy) == ("wrong-type", "Correct rules_caps.")
    assert problem.message == (
        "rules 'rules' of rules 1.0 (rules_caps:RULES) is of type 'list' of 'str'; expected a Rule "
        "or a sequence of Rules."
    )


@pytest.mark.parametrize(
    ("entry_points", "code"),
    [
        pytest.param("rules = no_such:RULES", "missing-module", id="broken"),
        pytest.param("rules : no_such", "malformed-entry", id="no-entry"),
    ],
)
def test_rule_set_says_which_rules_it_lacks(site: Site, entry_points: str, code: str) -> None:
    """A rule that cannot be read forces nothing, so that a plan must not look better by it."""
    site.install(entry_points=f"[backend_caps.rules]\n{entry_points}\n")

    registry = site.discover()

    assert [problem.code for problem in registry.rules().problems] == [code]
    assert registry.rules().problems == registry.problems
    assert registry.remarks == ()


def test_rule_set_says_which_allowed_plugin_it_lacks(site: Site) -> None:
    """A slip in the allow-list leaves rules out that were meant to be in."""
    site.plugin("rules", RULES, group="backend_caps.rules")

    registry = site.discover(environ={"BACKEND_CAPS_PLUGINS": "ruels"})

    assert [problem.code for problem in registry.rules().problems] == ["not-installed"]
    assert [problem.code for problem in registry.remarks] == ["not-allowed"]
    assert set(registry.problems) == {*registry.rules().problems, *registry.remarks}


def test_rule_set_passes_over_what_is_no_fault_of_rules(site: Site) -> None:
    """Neither a backend's malformed line nor a rule that prints keeps a rule out."""
    site.plugin("rules", f"print('x')\n{RULES}", group="backend_caps.rules")
    site.install(entry_points="[backend_caps.backends]\nfa3\n")

    registry = site.discover()

    assert registry.rules().problems == ()
    assert [problem.code for problem in registry.problems] == ["malformed-entry", "prints"]
    assert [problem.code for problem in registry.remarks] == ["prints"]


_CORRECT = "Correct the engines of 'site-rule', or install a backend-caps that knows 'other'."


@pytest.mark.parametrize(
    ("engine", "remedy"), [("sglang-0.5.32", "Did you mean 'sglang-0.5.23'?"), ("other", _CORRECT)]
)
def test_registry_tells_a_rule_of_an_unknown_engine(site: Site, engine: str, remedy: str) -> None:
    """A rule for a rule set that there is none of is in none, and that is reported."""
    source = RULES.replace("reason=", f"engines={{{engine!r}, 'sglang-0.5.13'}}, reason=")
    site.plugin("rules", source, group="backend_caps.rules")

    registry = site.discover()

    (problem,) = registry.problems
    assert (problem.code, problem.remedy) == ("unknown-engine", remedy)
    known = "known: backend-caps-1, sglang-0.5.13, sglang-0.5.23"
    assert problem.message == (
        f"rules 'rules' of rules 1.0 (rules_caps:RULES) has the rule 'site-rule' for {engine!r}, "
        f"and no rule set of that name is known; {known}."
    )
    assert registry.rules().problems == registry.problems


def test_registry_validates_rules_again(site: Site) -> None:
    """Rules that went round validation are refused, all of their entry."""
    forged = RULES + "RULES.append(Rule.model_construct(**vars(RULES[0]) | {'reason': ''}))\n"
    site.plugin("rules", forged, group="backend_caps.rules")

    registry = site.discover()

    assert registry.third_party_rules == ()
    assert [problem.code for problem in registry.problems] == ["schema"]


def test_registry_lists_the_uses_of_a_server(site: Site) -> None:
    """The backends that flags name are looked up here."""
    site.plugin("fa3", DECLARES)

    uses = site.discover().uses(ServerFlags.from_argv(["--attention-backend", "fa3"]))

    assert {use.backend for use in uses} == {"fa3"}
    assert {str(use.source) for use in uses} == {f"fa3 1.0, {site.root}/fa3_caps.py:3"}


def test_discover_keeps_each_side_of_a_conflict(site: Site) -> None:
    """A name that two distributions claim is broken for use, and reported with both."""
    for name in ("acme", "zed"):
        site.install(
            f"{name}-1.dist-info", entry_points=f"[backend_caps.backends]\nfa3 = {name}:D\n"
        )

    registry = site.discover()

    assert registry["fa3"].status is Status.CONFLICT
    assert [str(entry.source) for entry in registry.entries] == [
        f"{name} 1, {site.root}/{name}-1.dist-info/entry_points.txt:2" for name in ("acme", "zed")
    ]


def test_discover_does_not_run_what_is_not_allowed(site: Site, tmp_path: Path) -> None:
    """The allow-list keeps a plugin's code from running."""
    ran = tmp_path / "ran"
    site.plugin("bad", f"open({str(ran)!r}, 'w').close()\n" + DECLARES)

    registry = site.discover(environ={"BACKEND_CAPS_PLUGINS": "other"})

    assert [entry.status for entry in registry.entries] == [Status.SKIPPED]
    assert not ran.exists()


def test_registry_tells_what_the_allow_list_leaves_out(site: Site) -> None:
    """What is installed and not let in is kept beside the names that stand."""
    site.plugin("one", DECLARES)
    site.plugin("two", DECLARES)

    registry = discover([site.root], allow=["one"])

    assert ([*registry], [*registry.left_out]) == (["one"], ["two"])


def test_registry_leaves_out_no_name_that_stands() -> None:
    """A name that another distribution gives is there, whoever else would give it."""
    problem = Problem(code="not-allowed", message="no.", remedy="Add it.")
    skipped = replace(backend("a", Status.SKIPPED, distribution="b"), problems=(problem,))

    assert Registry.of([backend("a"), skipped]).left_out == {}


def test_discover_searches_this_environment_by_default() -> None:
    """Without a path `sys.path` is searched, without an environment this process's is read."""
    registry = discover(allow=["no-such-distribution"])

    assert registry.problems[0].code == "not-installed"
    assert dict(registry) == {}


def test_discover_reads_the_environment_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`BACKEND_CAPS_PLUGINS` of this process is the default allow-list."""
    site.install()
    monkeypatch.setenv("BACKEND_CAPS_PLUGINS", "other")

    registry = discover([site.root])

    assert [problem.code for problem in registry.entries[0].problems] == ["not-allowed"]


@pytest.mark.parametrize("argument", ["path", "allow"])
def test_discover_refuses_one_string_for_several(argument: str) -> None:
    """A string is a sequence of its letters, which nobody means."""
    path = "plugins" if argument == "path" else []
    allow = "plugins" if argument == "allow" else []

    with pytest.raises(DiscoveryError) as caught:
        discover(path, allow=allow)

    assert caught.value.code == "string-instead-of-list"
    assert str(caught.value) == (
        f"{argument}='plugins' is one string; expected several. Write {argument}=['plugins']."
    )


@pytest.mark.parametrize(
    ("deadline_s", "said"),
    [
        pytest.param(0, "0", id="none"),
        pytest.param(1e9, "1e+09", id="without-end"),
        pytest.param(math.nan, "nan", id="no-number"),
    ],
)
def test_discover_refuses_a_deadline_of_no_use(deadline_s: float, said: str) -> None:
    """A deadline of nothing would break every plugin; one without end is none."""
    with pytest.raises(DiscoveryError) as caught:
        discover([], deadline_s=deadline_s)

    assert str(pickle.loads(pickle.dumps(caught.value))) == (  # noqa: S301 - our own
        f"deadline_s is {said}; expected more than 0 and at most 86400. Give it some seconds."
    )


def test_registry_survives_pickling() -> None:
    """A worker process can be handed what its parent discovered; equal records are one value."""
    registry = Registry.of([backend("fa3"), backend("bad", Status.BROKEN)])

    copy = pickle.loads(pickle.dumps(registry))  # noqa: S301 - our own

    assert (copy, copy["fa3"]) == (registry, registry["fa3"])
    assert Registry.of([backend("bad", Status.BROKEN), backend("fa3")]) == registry


TELL = (
    "import sys; from backend_caps.discovery.registry import discover; "
    "registry = discover([sys.argv[1]], environ={}); print(registry.fingerprint, "
    "[(entry.name, entry.status.value, entry.problems) for entry in registry.entries], "
    "registry['fa3'].declaration.model_dump_json())"
)


def test_discover_is_the_same_in_every_process(site: Site) -> None:
    """Neither the hash seed nor the folder's own order changes the answer."""
    capabilities = "from backend_caps.capability.vocabulary import Capabilities\n"
    wide = "DECLARATION = Declaration(capabilities=Capabilities(dtypes={'a', 'b', 'c', 'd'}))\n"
    site.plugin("fa3", DECLARES + capabilities + wide)
    for name in ("zed", "acme", "mid"):
        site.install(f"{name}-1.dist-info", entry_points="[backend_caps.backends]\nx = no:D\n")

    told = {
        subprocess.check_output(
            [sys.executable, "-c", TELL, site.root], env=os.environ | {"PYTHONHASHSEED": seed}
        )
        for seed in ("0", "1", "2")
    }

    assert len(told) == 1


LIGHT = (
    "import os, sys; from backend_caps.discovery.loading import begin; "
    "loading = begin([sys.argv[1]], environ={}); "
    "heavy = {'pydantic', 'torch', 'click', 'importlib.metadata'} & set(sys.modules); "
    "print(sorted(heavy), len(loading.results()))"
)


def test_begin_imports_nothing_heavy(site: Site) -> None:
    """The scan and the start of the reading process come before pydantic is imported."""
    site.plugin("fa3", DECLARES)

    told = subprocess.check_output([sys.executable, "-c", LIGHT, site.root], text=True)

    assert told == "[] 1\n"


def test_registry_is_printed_in_one_line() -> None:
    """Whoever prints a registry sees its backends by name, and how many problems there are."""
    registry = Registry.of([backend("triton"), backend("fa3")])

    assert repr(registry) == "Registry(2 backends: fa3, triton; 0 problems)"
