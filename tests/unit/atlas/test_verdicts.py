"""What the kit found of a class, in documents, answers and on pages."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from backend_caps.atlas import release as releases
from backend_caps.atlas.build import ReleaseStore
from backend_caps.atlas.documents import VerdictDocument
from backend_caps.atlas.question import Answer, asked_in, replies
from backend_caps.atlas.release import reading_document
from backend_caps.atlas.site import write_site
from backend_caps.engines.read import read_engine
from tests.unit.atlas.releases import cell, release
from tests.unit.atlas.wheels import write_vllm

_HELD = VerdictDocument(check="replay", held=True, about=["graph_replay"])
_FAILED = VerdictDocument(
    check="sliding-window", held=False, about=["sliding_window"], words="one token short"
)


def _answers(value: JsonValue) -> tuple[Answer, str]:
    cells = {"sliding_window": cell(value), "graph_replay": cell(["single_token_decode"])}
    own = release(cells, verdicts=[_HELD, _FAILED])
    window, graphs = replies(own, "A", asked_in("sliding window, full graphs"))
    assert graphs.answer is Answer.YES
    return window.answer, window.value


def test_what_a_run_refutes_is_no_yes() -> None:
    """It may fit, with what was found; a no stays one, and what held is untouched."""
    yes, no = map(_answers, (True, False))

    assert yes == (Answer.OPEN, "yes, which a run refutes: one token short")
    assert no == (Answer.NO, "no")


def test_document_has_the_verdicts_of_its_very_release(tmp_path: Path) -> None:
    """Another release, or a class that was not run, has none."""
    runs = releases.kit_runs()
    (name,) = (each for each in runs if each.startswith("vllm "))
    version = name.removeprefix("vllm ")
    documents = [
        reading_document(
            read_engine("vllm", write_vllm(tmp_path / own, own, others=["TritonMLABackend"]))
        )
        for own in (version, "0.1.0")
    ]

    newest, older = (each.classes["TritonMLABackend"] for each in documents)
    assert [each.check for each in newest.verdicts or ()] == [
        own["check"] for own in runs[name]["TritonMLABackend"]
    ]
    assert "batch_invariant" in newest.refuted
    assert (older.verdicts, documents[0].classes["FastBackend"].verdicts) == (None, None)


def test_pages_mark_what_is_refuted(tmp_path: Path) -> None:
    """Those of the backend, the capability and the release do; verdicts have a table."""
    own = release({"sliding_window": cell(value=True)}, verdicts=[_HELD, _FAILED])
    store = ReleaseStore(tmp_path / "data")
    store.store(own)

    write_site(store, tmp_path, "1.0")

    mark = '<strong class="refuted">refuted by a run</strong>'
    for path, number in (
        ("backends/vllm/A.html", 1),
        ("capabilities/sliding_window.html", 1),
        ("capabilities/graph_replay.html", 0),
        ("releases/vllm-1.0.html", 1),
    ):
        assert (tmp_path / path).read_text("utf-8").count(mark) == number
    page = (tmp_path / "backends/vllm/A.html").read_text("utf-8")
    checks = [f'<tr><th scope="row">{each}</th>' for each in ("sliding-window", "replay")]
    assert page.index(checks[0]) < page.index("one token short") < page.index(checks[1])
