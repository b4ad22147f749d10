"""The generated parts of `docs/reference/problems.md`."""

from __future__ import annotations

from collections.abc import Mapping

from backend_caps.capability.facts import CHECKED_AGAINST, OF_EVERY_SERVER, Reason
from backend_caps.capability.provenance import ProblemText
from backend_caps.capability.provenance import problem_texts as texts_beside
from backend_caps.discovery import scan
from backend_caps.engines import reading
from docs.tools.markdown import table
from docs.tools.sources import VALUE, problem_texts


def discovery_problems() -> str:
    """Give each fault of a plugin."""
    return _problems(texts_beside(scan.__file__))


def engine_problems() -> str:
    """Give each thing that can be wrong with an engine's source."""
    return _problems(texts_beside(reading.__file__))


def _problems(texts: Mapping[str, ProblemText]) -> str:
    rows = [
        (
            f"`{code}`",
            f"{text.meaning[0].upper()}{text.meaning[1:]}.",
            " Or: ".join(VALUE.sub("…", each) for each in (text.remedy, text.hint) if each),
        )
        for code, text in texts.items()
    ]
    return table(("code", "meaning", "what to do"), rows)


def plan_problems() -> str:
    """Give each problem of a plan."""
    rows = [(f"`{t.code}`", t.message, " Or: ".join(t.remedies)) for t in problem_texts()]
    for fact in dict.fromkeys(CHECKED_AGAINST.values()):
        for reason in (Reason(fact=fact, actual="…", needed=each) for each in ("…", None)):
            told, ask = reason.of("…").replace("'…'", "…"), reason.remedy
            if reason.needed is None and fact in OF_EVERY_SERVER:
                told += f" Or, in a selection: backend … takes {fact} …; here it is not known."
                ask += f" Or: Say what it is, such as by --fact {fact}=…."
            rows.append((f"`{reason.code}`", told, ask))
    return table(("code", "what it says", "what to do"), sorted(rows))
