"""What servers decide of settings, in documents and in answers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from backend_caps.atlas.answers import answer
from backend_caps.atlas.build import ReleaseStore
from backend_caps.atlas.documents import AtlasSettingDocument, ReleaseDocument
from backend_caps.atlas.question import Answer, asked_in, names_in, replies, verdict
from backend_caps.atlas.release import reading_document
from backend_caps.atlas.site import write_site
from backend_caps.atlas.tables import table_of
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import Acceptance, Acceptances
from backend_caps.report.backends import PartDocument
from tests.unit.atlas.releases import Cells, cell, release
from tests.unit.atlas.wheels import write_vllm

_TRIED: dict[str, list[JsonValue]] = {
    "kv_cache_dtypes": ["fp8_e4m3", "fp8_e5m2"],
    "page_sizes": [16, 64],
    "max_speculative_topk": [4],
    "deterministic": [True],
    "attention_arch": ["mha", "ssm"],
    "compute_capability": ["9.0", "10.0"],
}
"""The values that command lines set."""


def _setting(name: str, *, accepted: bool, **settings: JsonValue) -> AtlasSettingDocument:
    return AtlasSettingDocument(
        name=name,
        settings=settings,
        accepted=accepted,
        words="a rule",
        declared_at="args.py:7",
        followed_on="H100, a model",
    )


def _release(*settings: AtlasSettingDocument, cells: Cells | None = None) -> ReleaseDocument:
    names = sorted({each.name for each in settings})
    made = release(cells or {}, registered_as=names, settings=[*settings])
    return made.model_copy(update={"tried": _TRIED, "names": {name: [] for name in names}})


def _answer(question: str, own: ReleaseDocument) -> Answer:
    named = names_in(question, own.names)
    return verdict(replies(own, "A", asked_in(question), named))


@pytest.mark.parametrize(
    ("question", "settings", "expected"),
    [
        ("page size 16", [{"accepted": False, "page_sizes": 16}], Answer.NO),
        ("page size 16", [{"accepted": True, "page_sizes": 16}], Answer.YES),
        ("page size 64", [{"accepted": False, "page_sizes": 16}], Answer.OPEN),
        ("page size 32", [{"accepted": True, "page_sizes": 16}], Answer.OPEN),
        ("deterministic", [{"accepted": False, "deterministic": True}], Answer.NO),
        # Of several dtypes one is enough, and all that were tried have to be refused.
        ("fp8 kv", [{"accepted": False, "kv_cache_dtypes": "fp8_e5m2"}], Answer.OPEN),
        (
            "fp8 kv",
            [
                {"accepted": False, "kv_cache_dtypes": "fp8_e5m2"},
                {"accepted": False, "kv_cache_dtypes": "fp8_e4m3"},
            ],
            Answer.NO,
        ),
        (
            "fp8 kv",
            [
                {"accepted": False, "kv_cache_dtypes": "fp8_e5m2"},
                {"accepted": True, "kv_cache_dtypes": "fp8_e4m3"},
            ],
            Answer.YES,
        ),
        # What refuses four branches refuses eight, and what takes four takes two.
        ("topk 8", [{"accepted": False, "max_speculative_topk": 4}], Answer.NO),
        ("topk 2", [{"accepted": False, "max_speculative_topk": 4}], Answer.OPEN),
        ("topk 2", [{"accepted": True, "max_speculative_topk": 4}], Answer.YES),
        ("topk 8", [{"accepted": True, "max_speculative_topk": 4}], Answer.OPEN),
    ],
)
def test_setting_answers(
    question: str, settings: list[dict[str, JsonValue]], expected: Answer
) -> None:
    """A refusal is a no and a statement a yes; what was not decided stays open."""
    own = _release(
        *(
            AtlasSettingDocument(
                name="one",
                settings={key: value for key, value in each.items() if key != "accepted"},
                accepted=bool(each["accepted"]),
                words="",
                followed_on="",
            )
            for each in settings
        )
    )

    assert _answer(question, own) is expected


def test_settings_together_answer_where_all_are_asked() -> None:
    """A machine on which only one kind of models is refused is none for that kind alone."""
    refused = {"attention_arch": "ssm", "compute_capability": "10.0"}
    own = _release(
        _setting("one", accepted=True, compute_capability="10.0"),
        _setting("one", accepted=True, attention_arch="ssm"),
        _setting("one", accepted=False, **refused),
    )

    assert _answer("mamba on blackwell", own) is Answer.NO
    assert _answer("on blackwell", own) is Answer.YES
    assert _answer("mamba on hopper", own) is Answer.OPEN


def test_setting_says_nothing_of_the_machine_that_it_was_set_on() -> None:
    """One dtype that a machine refuses leaves the machine open, and one that it takes does too."""
    machine = {"compute_capability": "10.0"}
    own = _release(
        _setting("one", accepted=False, kv_cache_dtypes="fp8_e5m2", **machine),
        _setting("one", accepted=True, kv_cache_dtypes="fp8_e4m3", **machine),
    )

    dtypes, gpu = replies(own, "A", asked_in("fp8 kv on blackwell"))

    assert (dtypes.answer, gpu.answer) == (Answer.YES, Answer.OPEN)


def test_names_of_a_class_decide_together_or_the_one_that_is_asked_alone() -> None:
    """A question may write a name's parts apart; a longer name is another one."""
    own = _release(
        _setting("fa_3", accepted=True, deterministic=True),
        _setting("fa_4", accepted=False, deterministic=True),
    )

    assert _answer("deterministic", own) is Answer.OPEN
    assert _answer("deterministic with fa-3", own) is Answer.YES
    assert _answer("deterministic with FA 4", own) is Answer.NO
    assert names_in("fa_3x or fa4", own.names) == {"fa_4"}


def test_name_that_decides_nothing_leaves_the_others_open() -> None:
    """Nothing is said of a name by what a server says of another."""
    own = _release(
        _setting("one", accepted=False, deterministic=True),
        _setting("two", accepted=False, page_sizes=16),
    )

    assert _answer("deterministic", own) is Answer.OPEN


def test_class_that_says_no_is_not_turned_by_a_server() -> None:
    """A server that lets a setting through does not make kernels of it."""
    cells = {"attention_sinks": cell(value=False)}
    own = _release(_setting("one", accepted=True, attention_sinks=True), cells=cells)

    (reply,) = replies(own, "A", asked_in("sinks"))

    assert (reply.answer, reply.at) == (Answer.NO, "a.py:1")


def test_reply_of_a_server_has_its_words_and_line() -> None:
    """They stand where the class's own would."""
    own = _release(_setting("one", accepted=False, deterministic=True))

    (reply,) = replies(own, "A", asked_in("deterministic"))

    assert (reply.value, reply.at, reply.stated_by) == ("a rule", "args.py:7", "the server")


def test_question_that_names_backends_is_about_them_alone() -> None:
    """Without a name it is about all."""
    own = _release(_setting("one", accepted=True, deterministic=True))
    other = own.classes["A"].model_copy(update={"registered_as": ["two"], "settings": None})
    own = own.model_copy(update={"classes": {**own.classes, "B": other}})

    assert [e.backend for e in answer("deterministic with one", [own]).answers] == ["A"]
    assert [e.backend for e in answer("deterministic", [own]).answers] == ["A", "B"]


def test_class_that_serves_has_the_branches_of_the_one_that_drafts_for_it() -> None:
    """The name's class for the same models does; one for other models says nothing of it."""
    limit = {"max_speculative_topk": cell(1)}
    draft = release(limit, path="a.Draft").classes["A"]
    parts = [
        PartDocument(name="A", roles=["target"], phases=None, given="mla"),
        PartDocument(name="Draft", roles=["draft"], phases=["decode"], given="mla"),
        PartDocument(name="B", roles=["target"], phases=None, given="mha"),
    ]
    own = release({})
    other = own.classes["A"]
    classes = {"A": other, "B": other, "Draft": draft}
    own = own.model_copy(update={"names": {"none": [], "one": parts}, "classes": classes})

    asked = asked_in("topk 4")
    assert [verdict(replies(own, each, asked)) for each in ("A", "B")] == [Answer.NO, Answer.OPEN]
    assert replies(own, "A", asked)[0].stated_by == "Draft"


def test_root_answers_for_a_class_whose_line_is_the_roots() -> None:
    """An engine reads the root's flag of a class that states none."""
    silent = cell("undeclared", at="base.py:3")
    root = {"host_seq_lens": cell("exact", at="base.py:3")}

    own, elsewhere = (
        release({"host_seq_lens": each}, root)
        for each in (silent, cell("undeclared", at="own.py:1"))
    )

    assert _answer("without host syncs", own) is Answer.NO
    assert _answer("without host syncs", elsewhere) is Answer.OPEN


def test_document_has_settings_of_the_classes_that_were_made(tmp_path: Path) -> None:
    """Those of a name that names no class are of all its classes; words are in one line."""
    reading = read_engine("vllm", write_vllm(tmp_path, "0.30.0"))
    one = Acceptance(
        name="FAST",
        paths=frozenset({"vllm.fast.FastBackend"}),
        settings={"page_sizes": 16},
        is_accepted=False,
        message="takes\n  64",
        at="",
        launch="H100, a model",
    )
    found = [one, replace(one, name="SLOW", paths=frozenset())]
    decided = Acceptances(found=found, tried={"page_sizes": [16]})

    document = reading_document(reading, decided)

    fast, slow = (document.classes[each].settings for each in ("FastBackend", "SlowBackend"))
    assert document.tried == {"page_sizes": [16]}
    assert fast == [
        AtlasSettingDocument(
            name="FAST",
            settings={"page_sizes": 16},
            accepted=False,
            words="takes 64",
            followed_on="H100, a model",
        )
    ]
    assert [each.name for each in slow or ()] == ["SLOW"]


def test_page_of_a_backend_lists_settings_with_their_words(tmp_path: Path) -> None:
    """A machine stands behind what is set on it."""
    own = _release(
        _setting("one", accepted=False, compute_capability="10.0", attention_arch="ssm"),
        _setting("one", accepted=True, page_sizes=16),
    )
    store = ReleaseStore(tmp_path / "data")
    store.store(own)

    write_site(store, tmp_path, "1.0")

    page = " ".join((tmp_path / "backends/vllm/A.html").read_text("utf-8").split())
    rows = re.findall(r"<td>([^<]*) (?:<small>on ([^<]*)</small> )?<small>one</small></td>", page)
    assert rows == [("ssm", "10.0"), ("16", "")]
    assert page.count("a rule<br>") == 2


def test_table_of_the_first_view_has_what_its_columns_show() -> None:
    """A question loads the whole one."""
    cells = {"sliding_window": cell(value=True), "dtypes": cell(["bfloat16"])}
    own = _release(_setting("one", accepted=True, deterministic=True), cells=cells)

    whole, first = table_of(own), table_of(own, ["sliding_window"])

    assert whole["rows"][0][5] == [[0, 0, 1, 1, 1, 7]]
    assert (whole["tried"], first["tried"]) == (_TRIED, None)
    assert [len(each["rows"][0][4]) for each in (whole, first)] == [2, 1]
    assert first["rows"][0][5] == []
