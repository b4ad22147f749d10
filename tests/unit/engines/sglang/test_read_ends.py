from __future__ import annotations

from pathlib import Path
from textwrap import indent

from backend_caps import Origin, SharedReadsEnd
from tests.unit.engines.sglang.building import ATTENTION, Class, read_class
from tests.unit.engines.tables import table

TWO = "class Two(AttentionBackend):\n    def shared_read_ends(self, mode):\n"


def _read(folder: Path, body: str, before: str = TWO) -> Class:
    return read_class(folder, before + indent(body, " " * 8))


def _words(read: Class) -> dict[str, str]:
    words = read.engine_class.readings["shared_reads_end"].words
    told = (each.partition(": ") for each in words.split("; "))
    return {phase: said for phase, _, said in told}


def _cases(read: Class) -> list[tuple[str, str]]:
    return [
        (str(when.given), end.value)
        for when in read.declaration.conditions
        if isinstance(end := when.capabilities.shared_reads_end, SharedReadsEnd)
    ]


BY_MODE = """
if mode.is_decode():
    return SharedReadEnds.PRE_REPLAY
if mode.is_target_verify():
    return SharedReadEnds.POST_REPLAY
return SharedReadEnds.UNKNOWN
"""


def test_method_is_read_phase_by_phase(tmp_path: Path) -> None:
    """What the method returns in a phase is what its questions about the mode leave."""
    read = _read(tmp_path, BY_MODE)

    assert _words(read) == {"prefill": "unknown", "decode": "pre_replay", "verify": "post_replay"}
    assert _cases(read) == [
        ("phase = prefill", "unknown"),
        ("phase = decode", "pre_replay"),
        ("phase = verify", "post_replay"),
    ]


@table("sglang_read_ends", "question_about_the_mode_decides")
def test_question_about_the_mode_decides(tmp_path: Path, question: str, decode: str) -> None:
    """A condition on the forward mode holds in a phase or does not."""
    body = f"if {question}:\n    return SharedReadEnds.IN_REPLAY\nreturn SharedReadEnds.UNKNOWN\n"

    assert _words(_read(tmp_path, body))["decode"] == decode


def test_condition_of_its_own_is_left_open(tmp_path: Path) -> None:
    """What is no question about the mode is a condition of the answer."""
    read = _read(
        tmp_path,
        "if self.is_late:\n    return SharedReadEnds.POST_REPLAY\n"
        "return SharedReadEnds.IN_REPLAY\n",
    )

    assert _words(read)["decode"] == (
        "post_replay where self.is_late or in_replay where not self.is_late"
    )
    assert _cases(read)[2:4] == [
        ("phase = decode and self.is_late", "post_replay"),
        ("phase = decode and not self.is_late", "in_replay"),
    ]


def test_reason_is_in_the_words_of_the_source(tmp_path: Path) -> None:
    """Each condition says what the method returns, and under which one."""
    read = _read(tmp_path, BY_MODE)

    reasons = [each.reason for each in read.declaration.conditions]
    assert "shared_read_ends returns pre_replay" in reasons


def test_answer_for_plain_prefill_holds_without_mixed_chunks(tmp_path: Path) -> None:
    """A mode that is compared with prefill is another one when decode rows ride along."""
    read = _read(
        tmp_path,
        "if mode == Mode.EXTEND:\n    return SharedReadEnds.IN_REPLAY\n"
        "return SharedReadEnds.UNKNOWN\n",
    )

    assert _cases(read)[0] == ("phase = prefill and enable_mixed_chunk off", "in_replay")


BASED = """
class Base(AttentionBackend):
    def shared_read_ends(self, mode):
        if mode.is_decode():
            return SharedReadEnds.IN_REPLAY
        return SharedReadEnds.POST_REPLAY

class Two(Base):
"""


def test_super_is_followed(tmp_path: Path) -> None:
    """What a class leaves to its base is the base's answer, under the class's condition."""
    read = _read(
        tmp_path,
        "if self.is_late:\n    return SharedReadEnds.POST_REPLAY\n"
        "return super().shared_read_ends(mode)\n",
        BASED + "    def shared_read_ends(self, mode):\n",
    )

    assert _words(read)["decode"] == (
        "post_replay where self.is_late or in_replay where not self.is_late"
    )


def test_super_of_nothing_says_nothing(tmp_path: Path) -> None:
    """Where no base has the method, there is no answer."""
    read = read_class(
        tmp_path,
        """
        class Two:
            needs_cpu_seq_lens = False
            def shared_read_ends(self, mode):
                return super().shared_read_ends(mode)
        """,
    )

    assert _words(read) == {"prefill": "nothing", "decode": "nothing", "verify": "nothing"}
    assert _cases(read) == []


def test_inherited_method_is_reported_and_not_declared(tmp_path: Path) -> None:
    """What a base below the root answers comes with the base's name and line."""
    read = read_class(tmp_path, BASED + "    pass\n")

    reading = read.engine_class.readings["shared_reads_end"]
    assert (reading.origin, reading.inherited_from) == (Origin.INHERITED, "Base")
    assert (_words(read)["decode"], reading.declared_at) == ("in_replay", f"{ATTENTION}/two.py:5")
    assert _cases(read) == []


def test_answer_of_the_root_says_nothing(tmp_path: Path) -> None:
    """A class that leaves the base class's method has no reading."""
    read = read_class(tmp_path, "class Two(AttentionBackend): pass\n")

    assert "shared_reads_end" not in read.engine_class.readings


@table("sglang_read_ends", "answer_that_is_no_level_is_undeclared")
def test_answer_that_is_no_level_is_undeclared(tmp_path: Path, answer: str) -> None:
    """The expression is reported, and the phases in which it decides declare nothing."""
    body = f"if mode.is_decode():\n    return {answer}\nreturn SharedReadEnds.UNKNOWN\n"

    read = _read(tmp_path, body)

    assert _words(read)["decode"] == answer
    assert [given for given, _ in _cases(read)] == ["phase = prefill", "phase = verify"]
