"""What the atlas says that SGLang's server takes, beside what an installed SGLang makes of it.

    python -m tests.upstream.atlas.settings --version 0.5.23

Each setting is tried again by SGLang's own processing of arguments, in the environment that has it,
on the machine and with the model that the atlas names. Exits with 1 where they differ.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby

import click

from backend_caps.capability.gpu import gpus
from backend_caps.engines.model import STORED_PATH, in_folders, model_of
from backend_caps.engines.query import ask
from backend_caps.engines.read import read_acceptances
from backend_caps.engines.reading import Acceptance
from backend_caps.engines.sglang.query import SCRIPT, launch_of
from backend_caps.engines.sglang.server_trials import ARGUMENT, OPTIONS, PAGES, Option
from backend_caps.resolution.launch import Launch
from tests.upstream.sglang_environment import python_of
from tests.upstream.sglang_wheel import find_wheel

_CHOICE = "the server's own choice"
_NAMES = (ARGUMENT, f"prefill_{ARGUMENT}", f"decode_{ARGUMENT}")


@dataclass(frozen=True, slots=True)
class _Case:
    """A setting, with the command line by which it is tried again."""

    own: Acceptance
    gpu: str
    model: str
    option: Option | None

    @property
    def words(self) -> list[str]:
        """The command line without its model."""
        named = (
            [] if self.own.message.startswith(_CHOICE) else ["--attention-backend", self.own.name]
        )
        own = self.option.words if self.option else ()
        return [*named, *(each.removeprefix(STORED_PATH) for each in own)]

    def is_taken(self, launch: Launch) -> bool:
        """Return whether a server starts with the setting and the backend as they were given."""
        values = launch.values
        if launch.refusal is not None:
            return False
        if self.own.message.startswith(_CHOICE):
            return self.own.name in [values.get(each) for each in _NAMES]
        kept = {ARGUMENT: self.own.name, **(self.option.kept if self.option else {})}
        return all(values.get(name) == value for name, value in kept.items())


def _cases(found: Sequence[Acceptance]) -> Iterator[_Case]:
    for own in found:
        gpu, _, model = own.launch.partition(", ")
        if gpu == "CPU":  # SGLang asks this machine's own processor
            continue
        options = (e for e in (*OPTIONS, *PAGES) if own.settings.get(e.capability) == e.value)
        yield _Case(own, gpu, model, next(options, None))


def _asked(version: str, gpu: str, cases: Sequence[_Case]) -> Iterator[tuple[_Case, Launch]]:
    lines = []
    with ExitStack() as stack:
        for case in cases:
            model = model_of(case.model)
            _, [words], path = stack.enter_context(in_folders([case.words], model))
            lines.append([*words, "--model-path", path])
        answers = ask(python_of(version, "sglang"), SCRIPT, lines, gpus()[gpu], 1)
    for case, answer in zip(cases, answers, strict=True):
        yield case, launch_of(answer, gpus()[gpu], case.model)


@click.command(help=__doc__)
@click.option("--version", default="0.5.23", show_default=True)
def main(version: str) -> None:
    """Exit with 1 where the engine and the atlas differ."""
    found = read_acceptances("sglang", find_wheel(version, "sglang")).found
    counts: Counter[str] = Counter()
    cases = sorted(_cases(found), key=lambda each: each.gpu)
    for gpu, group in groupby(cases, key=lambda each: each.gpu):
        for case, launch in _asked(version, gpu, [*group]):
            if launch.unchecked:
                outcome = "not decided by the engine, for want of a package"
            elif case.is_taken(launch) is case.own.is_accepted:
                outcome = "equal"
            else:
                outcome = "different"
                click.echo(f"{case.own} {launch.refusal} {launch.values.get(ARGUMENT)}")
            counts[outcome] += 1
    click.echo(f"SGLang {version}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    sys.exit(counts["different"] > 0)


if __name__ == "__main__":
    main()
