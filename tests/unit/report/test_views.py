from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from time import monotonic, sleep

import pytest
from rich.console import Console

from backend_caps import Capabilities, Phase, resolve
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.backend_views import report_view
from backend_caps.report.backends import report_document
from backend_caps.report.dry_run_documents import DryRunDocument
from backend_caps.report.dry_run_views import dry_run_view
from backend_caps.report.generate_documents import GenerateDocument
from backend_caps.report.generate_views import generate_view
from backend_caps.report.html.page import page
from backend_caps.report.plan_views import explain_view, plan_view, relay_view
from backend_caps.report.plans import FlipDocument, plan_document
from backend_caps.report.progress import spinning, terminal_of
from backend_caps.report.sections import (
    Heading,
    Lines,
    Opened,
    Section,
    Table,
    in_words,
    markdown,
    visible,
)
from backend_caps.report.step_costs import MeasureDocument, costs_view
from tests.unit.building import READS, RULES_13, flags, installed, use
from tests.unit.report import scene
from tests.unit.report.conftest import Golden, Shown
from tests.unit.report.stored import read

_EVERYTHING = tuple(CAPABILITIES)


def _plan_of(line: str) -> Iterable[Section]:
    return plan_view(scene.plan(line)[1])


def _explained(line: str, phase: str | None) -> Iterable[Section]:
    document = scene.plan(line)[1]
    of_plans = [
        name for name in _EVERYTHING if name in document.server or name in document.phases["decode"]
    ]
    return in_words(explain_view(document, of_plans, phase))


def _hostile() -> Iterable[Section]:
    words = scene.HOSTILE
    yield Heading(words)
    yield Lines((words,))
    yield Table(("name", words), ((words, words), ("ok", "broken")))


_VIEWS: list[tuple[str, Callable[[], Iterable[Section]]]] = [
    ("report", lambda: report_view(scene.report(None))),
    ("report-with-plan", lambda: report_view(scene.report(scene.FREE))),
    ("report-with-evidence", lambda: report_view(scene.verified())),
    ("report-of-nothing", lambda: report_view(report_document((), (), None))),
    ("plan-forced", lambda: _plan_of(scene.FORCED)),
    ("plan-free", lambda: _plan_of(scene.FREE)),
    ("explain", lambda: _explained(scene.FORCED, None)),
    ("explain-decode", lambda: _explained(scene.FREE, "decode")),
    ("relay", lambda: relay_view(scene.relayed())),
    ("hostile", _hostile),
]


@pytest.mark.parametrize(("name", "view"), _VIEWS, ids=[name for name, _ in _VIEWS])
def test_view_is_known_to_the_last_letter(
    name: str, view: Callable[[], Iterable[Section]], golden: Golden, shown: Shown
) -> None:
    """A view is drawn where the output is no terminal, and written as markdown."""
    golden(f"{name}.txt", shown(view()))
    golden(f"{name}.md", markdown(view()))


@pytest.mark.parametrize("write", ["markdown", "tables"])
@pytest.mark.parametrize("control", ["\x1b", "\x07", "\u202e", "\x9b"])
def test_control_characters_are_shown_and_not_sent(write: str, control: str, shown: Shown) -> None:
    """No character of a plugin's words moves the cursor, rings, or turns the text around."""
    sections: list[Section] = [
        Heading(control),
        Lines((control,)),
        Table((control,), ((control,),)),
    ]

    text = markdown(sections) if write == "markdown" else shown(sections)

    assert control not in text


def test_visible_keeps_what_people_read() -> None:
    """Letters of any language and line breaks stay as they are."""
    text = "größer 注意\n✓"

    assert visible(text) == text


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        pytest.param(None, ["graph_replay in decode, verify"], id="all"),
        pytest.param("verify", ["graph_replay in verify"], id="one"),
    ],
)
def test_explanation_tells_what_helps_several_phases_once(
    phase: str | None, told: list[str]
) -> None:
    """What leads to the same value in the phases that were asked for stands in one row."""
    document = scene.plan(scene.FORCED)[1]
    flip = FlipDocument(
        capability="graph_replay", phase="decode", value=[], becomes=["a"], remedies=["Do it."]
    )
    flips = [flip, flip.model_copy(update={"phase": "verify"})]
    document = document.model_copy(update={"flips": flips})

    *_, last = explain_view(document, ["graph_replay"], phase)

    assert isinstance(last, Table)
    assert last.rows == tuple((name, "a", "Do it.") for name in told)


def test_explanation_of_a_phase_that_nobody_runs_says_so() -> None:
    """A phase that nobody runs is left out; where it is asked for, the explanation is that."""
    document = plan_document(resolve([use("fa3", READS)], flags(), rules=RULES_13), ())

    of_all = [*explain_view(document, ["sync_free_prepare"], None)]
    sections = [*in_words(explain_view(document, ["sync_free_prepare"], Phase.VERIFY.value))]

    headings = [each.text for each in of_all if isinstance(each, Heading)]
    assert headings == ["sync_free_prepare in decode = no"]
    assert sections == [Lines(("sync_free_prepare in verify: no backend is used there.",))]


def test_backends_beyond_a_tables_width_get_another_table() -> None:
    """Three backends stand side by side, further ones below."""
    says = Capabilities(two_batch_overlap=True)
    document = report_document([installed(f"b{at}", says) for at in range(4)], (), None)

    columns = [each.columns for each in report_view(document) if isinstance(each, Table)]

    assert columns[1:] == [("capability", "b0", "b1", "b2"), ("capability", "b3")]


def test_backends_that_declare_nothing_get_no_table() -> None:
    """Of backends that say nothing, what they leave out is named once."""
    document = report_document([installed("fa3"), installed("mla")], (), None)

    sections = list(report_view(document))[2:]

    assert sections == [Lines((f"undeclared by fa3, mla: {', '.join(CAPABILITIES)}",))]


_OF_PROMPTS = (
    *("generate", "generate-drafted", "generate-simulated", "generate-without-streams"),
    "generate-one-of-each",
)
_DRY_RUNS = ("dry-run", "dry-run-of-ranks", "dry-run-on-a-gpu", "dry-run-with-a-stand-in")
_MEASURED = ("measured", "measured-one-level", "measured-without-drafts")


def _view(name: str) -> Iterator[Section]:
    if name in _OF_PROMPTS:
        return generate_view(read(name, GenerateDocument))
    if name in _DRY_RUNS:
        return dry_run_view(read(name, DryRunDocument))
    return costs_view(read(name, MeasureDocument))


@pytest.mark.parametrize("name", [*_OF_PROMPTS, *_DRY_RUNS, *_MEASURED])
def test_view_of_a_run_is_known_to_the_last_letter(name: str, golden: Golden) -> None:
    """What was decided, what ran and what it came to stand in this order."""
    golden(f"{name}.md", markdown(_view(name)))


@pytest.mark.parametrize(
    ("name", "ranks", "title"),
    [
        pytest.param("dry-run", slice(1), "it ran as it was decided", id="as decided"),
        pytest.param(
            "dry-run-of-ranks", slice(1, 2), "not as it was decided in 1 way", id="one way"
        ),
        pytest.param(
            "dry-run-of-ranks", slice(1, 3), "not as it was decided in 1 way", id="of two ranks"
        ),
    ],
)
def test_page_is_titled_by_whether_it_ran_as_decided(name: str, ranks: slice, title: str) -> None:
    """What a dry run is asked stands first on its page; what ranks found alike counts once."""
    document = read(name, DryRunDocument)
    document = document.model_copy(update={"ranks": document.ranks[ranks]})

    assert f"<h1>Dry run: {title}</h1>" in page(document, dry_run_view(document))


def test_page_of_costs_is_that_of_the_plan() -> None:
    """What was counted stands on the page that the explanation has, with its drawing."""
    text = page(read("measured", MeasureDocument), [Opened(name="host_seq_lens")])

    parts = ["<h2>What a step costs, ", "<details open>", '<h2 id="graph">Who forces what']
    assert [part for part in sorted(parts, key=text.index) if part in text] == parts


def test_page_without_costs_says_why() -> None:
    """Where nothing could be counted the page has the reason, and no table."""
    measured = read("measured", MeasureDocument)
    document = measured.model_copy(update={"measured": None, "problem": "no such backend."})

    text = page(document, ())

    assert "<li>no such backend.</li>" in text
    assert "bytes to host" not in text


_MOST_S = 30.0


def _console() -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, force_terminal=True, width=80, color_system=None), file


def _wait_for(file: StringIO, text: str) -> None:
    end_s = monotonic() + _MOST_S
    while text not in file.getvalue() and monotonic() < end_s:
        sleep(0.01)


def test_line_says_what_takes_long_and_is_gone_after_it() -> None:
    """On a terminal it is drawn within the block, and erased at its end."""
    console, file = _console()

    with spinning("reading an engine", console=console, patience_s=0):
        _wait_for(file, "reading an engine")
        meanwhile = file.getvalue()

    assert "reading an engine" in meanwhile
    assert file.getvalue().endswith("\x1b[2K")


def test_line_is_not_drawn_of_what_is_done_at_once() -> None:
    """What does not take long is not spoken of."""
    console, file = _console()

    with spinning("reading an engine", console=console, patience_s=_MOST_S):
        pass

    assert file.getvalue() == ""


def test_line_is_gone_before_an_error_is_reported() -> None:
    """Whatever is raised within the block finds the terminal as it was."""
    console, file = _console()

    def read() -> None:
        with spinning("reading an engine", console=console, patience_s=0):
            _wait_for(file, "reading an engine")
            raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        read()
    assert file.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize("stream", [None, StringIO()], ids=["closed", "no terminal"])
def test_stream_that_is_no_terminal_is_none_by_wish(
    stream: StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`FORCE_COLOR` makes a terminal of nothing."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert not terminal_of(stream).is_terminal


def test_line_is_not_drawn_where_there_is_no_terminal() -> None:
    """A log has nothing of it, however long it takes."""
    file = StringIO()

    with spinning("reading an engine", console=Console(file=file), patience_s=0):
        sleep(0.05)

    assert file.getvalue() == ""
