"""What the host is at, by the functions that it is in: a table of symbols, and a profile function.

The runtime knows nothing of it. A function that is renamed fails this module's import.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

import backend_caps
from backend_caps.insight.trace.signals import BARRIER, PUBLISH
from backend_caps.relay import FutureMap
from backend_caps.runtime.scheduler import Scheduler
from backend_caps.runtime.speculative import verify
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.decoding import SpeculativeDecoding
from backend_caps.runtime.speculative.model_drafter import ModelDrafter
from backend_caps.runtime.speculative.ngram_drafter import NgramDrafter
from backend_caps.runtime.speculative.runner import SpeculativeRunner
from backend_caps.runtime.step import PlainRunner, StepLauncher

_Function = Callable[..., object]
_REGIONS: tuple[tuple[_Function, str], ...] = (
    (Scheduler._next_batch, "build batch"),  # noqa: SLF001 - what the host does, public or not
    (Scheduler._process, "results"),  # noqa: SLF001
    (StepLauncher.launch, "launch"),
    (StepLauncher.barrier, BARRIER),
    (StepLauncher.tokens, "tokens"),
    (FutureMap.publish, PUBLISH),
    (FutureMap.stash, "stash"),
    (FutureMap.resolve_seq_lens_cpu, "resolve_seq_lens_cpu"),
    (FutureMap.set_input_ids_sentinel, "set_input_ids_sentinel"),
    (FutureMap.resolve_future, "resolve_future"),
    (FutureMap.commit_lengths, "commit_lengths"),
    (SpeculativeDecoding.commit, "commit_lengths"),
    (PlainRunner.run, "forward"),
    (SpeculativeRunner.run, "forward"),
    (Contexts.of_step, "contexts"),
    (ModelDrafter.tree, "draft"),
    (NgramDrafter.tree, "draft"),
    (verify.predict, "accept"),
    (verify.accepted, "accept"),
    (ModelDrafter.follow_accepted, "draft_extend"),
    (ModelDrafter.follow_prompts, "draft prefill"),
)
REGIONS: Mapping[CodeType, str] = {
    inspect.unwrap(function).__code__: name for function, name in _REGIONS
}
"""The names of functions that are shown by one."""
_ROOT = Path(backend_caps.__file__).parent
_CHARGED = tuple(f"{_ROOT / folder}/" for folder in ("relay", "runtime"))


class RegionObserver(Protocol):
    """Is told where the host is."""

    def called(self) -> None:
        """Take in that the host calls a function of relay or runtime."""

    def enter(self, name: str) -> None:
        """Take in that the host enters a region."""

    def leave(self) -> None:
        """Take in that the host leaves the innermost region."""


class _Charged(dict[CodeType, bool]):
    """Whether a call of code is paid for.

    A comprehension is no call in Python 3.12, and was one before; so none is.
    """

    def __missing__(self, code: CodeType) -> bool:
        is_own = code.co_filename.startswith(_CHARGED) and not code.co_name.startswith("<")
        self[code] = is_own
        return is_own


Profile = Callable[[FrameType, str, object], None]
"""What `sys.setprofile` takes."""


def profile(observer: RegionObserver) -> Profile:
    """Make what tells an observer of calls and returns; it is asked at each of them, in C too."""
    charged, regions = _Charged(), REGIONS

    def tell(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            if charged[code]:
                observer.called()
                if code in regions:
                    observer.enter(regions[code])
        elif event == "return" and frame.f_code in regions:
            observer.leave()

    return tell


@contextmanager
def told_regions(observer: RegionObserver) -> Iterator[None]:
    """Tell an observer where this thread is, within a `with` block.

    Whoever profiles the thread already is heard again afterwards, and not before.
    """
    before = sys.getprofile()
    sys.setprofile(profile(observer))
    try:
        yield
    finally:
        sys.setprofile(before)
