"""Which claims are let in."""

from __future__ import annotations

from pathlib import Path

from backend_caps.capability.provenance import Problem, Status
from backend_caps.discovery.process import Search
from backend_caps.discovery.scan import AllowList, Claim, Scan, admit, scan
from tests.discovery.conftest import Site


def of_two(site: Site) -> Scan:
    """Install two distributions that claim one name, and scan them."""
    site.install()
    site.install(
        "backend_caps_fa-0.1.dist-info",
        entry_points="[backend_caps.backends]\nfa3 = bc_fa:FA3\n",
    )
    return site.scan()


def told(scanned: Scan) -> dict[str, tuple[Status, list[str]]]:
    """List status and problem codes by distribution."""
    return {
        claim.distribution: (claim.status, [problem.code for problem in claim.problems])
        for claim in scanned.claims
    }


def test_admit_refuses_a_name_that_two_distributions_claim(site: Site) -> None:
    """A conflict names both, once for each."""
    scanned = admit(of_two(site), None)

    problem = Problem(
        code="declared-twice",
        message="backend 'fa3' is declared twice: by acme-caps 2.0 (acme_caps:DECLARATION) and "
        "backend-caps-fa 0.1 (bc_fa:FA3).",
        remedy="Uninstall one, or name the plugins to use in BACKEND_CAPS_PLUGINS.",
    )
    assert [(claim.status, claim.problems) for claim in scanned.claims] == [
        (Status.CONFLICT, (problem,)),
        (Status.CONFLICT, (problem,)),
    ]


def test_admit_counts_how_many_distributions_claim_a_name(site: Site) -> None:
    """Three are named as three."""
    site.install("third-1.dist-info", entry_points="[backend_caps.backends]\nfa3 = third:FA3\n")

    scanned = admit(of_two(site), None)

    message = scanned.claims[0].problems[0].message
    assert message.startswith("backend 'fa3' is declared 3 times: by acme-caps 2.0 (")


def test_admit_resolves_a_conflict_by_the_allow_list(site: Site) -> None:
    """What the list leaves out no longer claims a name."""
    allow = AllowList.of(None, {"BACKEND_CAPS_PLUGINS": " Acme.Caps ,"})

    scanned = admit(of_two(site), allow)

    assert told(scanned) == {
        "acme-caps": (Status.OK, []),
        "backend-caps-fa": (Status.SKIPPED, ["not-allowed"]),
    }
    assert scanned.claims[1].problems == (
        Problem(
            code="not-allowed",
            message="backend 'fa3' of backend-caps-fa 0.1 (bc_fa:FA3) is not in "
            "BACKEND_CAPS_PLUGINS, which names: acme-caps.",
            remedy="Add backend-caps-fa to BACKEND_CAPS_PLUGINS to use it.",
        ),
    )


def test_admit_leaves_rules_of_one_name_alone(site: Site) -> None:
    """An entry of rules has a name for people alone: two may share it."""
    site.install("a-1.dist-info", entry_points="[backend_caps.rules]\nsite = a:RULES\n")
    site.install("b-1.dist-info", entry_points="[backend_caps.rules]\nsite = b:RULES\n")

    scanned = admit(site.scan(), None)

    assert told(scanned) == {"a": (Status.OK, []), "b": (Status.OK, [])}


def test_admit_refuses_one_name_for_two_objects_of_a_distribution(site: Site) -> None:
    """Of two entries with one name nobody knows which holds."""
    site.install(entry_points="[backend_caps.backends]\nfa3 = acme:FA3\nfa3 = acme:FA4\n")

    (claim,) = admit(site.scan(), None).claims

    assert claim.status is Status.CONFLICT
    assert claim.problems == (
        Problem(
            code="duplicate-entry",
            message="backend 'fa3' is declared twice by acme-caps 2.0: as acme:FA3 and acme:FA4.",
            remedy="Take one out of the entry points of acme-caps.",
        ),
    )


def test_admit_folds_an_entry_that_is_written_twice(site: Site) -> None:
    """The same entry again says nothing new."""
    site.install(entry_points="[backend_caps.rules]\nsite = acme:RULES\nsite = acme:RULES\n")

    scanned = admit(site.scan(), None)

    assert told(scanned) == {"acme-caps": (Status.OK, [])}
    assert len(scanned.claims) == 1


def test_admit_keeps_each_shadowed_release_for_itself(tmp_path: Path) -> None:
    """Two old releases with one entry are told as two."""
    sites = [Site(tmp_path / name) for name in ("first", "second", "third")]
    for site in sites:
        site.install()

    scanned = admit(scan(Search.of_folders([site.root for site in sites])), None)

    assert [claim.status for claim in scanned.claims] == [
        Status.OK,
        Status.SKIPPED,
        Status.SKIPPED,
    ]


def test_allow_list_of_the_caller_comes_before_the_environments() -> None:
    """What is passed wins over what is set."""
    allow = AllowList.of(["My_Pkg"], {"BACKEND_CAPS_PLUGINS": "other"})

    assert allow == AllowList(name="allow", allowed=frozenset({"my-pkg"}))


def test_allow_list_is_none_where_nothing_is_set() -> None:
    """Without a list everything is allowed."""
    assert AllowList.of(None, {}) is None


def test_allow_list_that_is_blank_allows_nothing(site: Site) -> None:
    """A list that is set and empty keeps every plugin out, and says so."""
    site.install()

    scanned = admit(site.scan(), AllowList.of(None, {"BACKEND_CAPS_PLUGINS": ""}))

    (problem,) = scanned.claims[0].problems
    assert problem.message == (
        "backend 'fa3' of acme-caps 2.0 (acme_caps:DECLARATION) is not in BACKEND_CAPS_PLUGINS, "
        "which names: nothing."
    )


def test_admit_tells_an_allowed_distribution_that_is_not_there(site: Site) -> None:
    """A mistyped name is told with the one that was probably meant."""
    site.install()

    scanned = admit(site.scan(), AllowList.of(["acme-cap"], {}))

    assert scanned.problems == (
        Problem(
            code="not-installed",
            message="allow names 'acme-cap', and no installed distribution of that name declares "
            "anything; those that do: acme-caps.",
            remedy="Did you mean 'acme-caps'?",
        ),
    )


def test_admit_names_the_distribution_of_an_allowed_backend(site: Site) -> None:
    """A backend's name in the list of distributions is an easy slip."""
    site.install()

    scanned = admit(site.scan(), AllowList.of(["fa3"], {}))

    assert scanned.problems[0].remedy == "Did you mean 'acme-caps'?"


def test_admit_has_no_suggestion_for_a_name_like_no_other() -> None:
    """With nothing alike installed, the remedy is to install it."""
    empty = Scan(claims=(), problems=(), imports=())

    scanned = admit(empty, AllowList.of(["acme-caps"], {}))

    assert scanned.problems == (
        Problem(
            code="not-installed",
            message="allow names 'acme-caps', and no installed distribution of that name declares "
            "anything; those that do: none.",
            remedy="Take it out of allow, or install it.",
        ),
    )


def test_claim_of_rules_says_so(site: Site) -> None:
    """Rules are no backend, and are not called one."""
    site.install(entry_points="[backend_caps.rules]\nsite = acme:RULES\n")

    claim: Claim = site.claim()

    assert str(claim) == "rules 'site' of acme-caps 2.0 (acme:RULES)"
    assert not claim.is_backend
