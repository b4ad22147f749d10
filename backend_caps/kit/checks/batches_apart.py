"""A batch leaves nothing behind: the next one gives what it gives in a new backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.check import Case, Check, Effort, Fault, always
from backend_caps.kit.rig import Rig, difference, supplied
from backend_caps.kit.rotating import rotated_cases
from backend_caps.kit.scenarios import Forward
from backend_caps.kit.subject import Subject
from backend_caps.kit.workloads.playing import Player
from backend_caps.kit.workloads.sequences import story_of

_CODE = "batches-apart"


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return rotated_cases(_CODE, subject, list(Forward), effort, share=2)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    story = story_of(rig.subject, case.scenario, case.seed)
    expected = [rig.baseline(turn.scene) for turn in story.turns]
    tolerance = rig.subject.tolerance(case.scenario.dtype)
    with rig.running():
        player = Player(rig, story, supply=partial(supplied, level=HostSeqLens.EXACT))
        for place, turn in enumerate(story.turns):
            differs = difference(player.output(turn), expected[place], tolerance)
            if differs is not None:
                earlier = ", ".join(own.forward.value for own in story.turns[:place])
                yield Fault(
                    what=f"in turn {place}, {turn.forward.value} behind {earlier}, {differs}; "
                    f"what a new backend gives was expected"
                )
                # What comes after it reads what it wrote.
                return


CHECK = Check(
    code=_CODE,
    claims=(),
    title="Batches do not depend on those before them.",
    proves="Batch after batch of one backend, whose requests come, grow, change their order and "
    "leave, and whose rows and pages others get at once, give what each gives in a new backend.",
    cannot="What only many batches bring about; `memory` looks for what grows.",
    excuse=always,
    cases=_cases,
    run=_run,
    after=("inputs-untouched",),
)
