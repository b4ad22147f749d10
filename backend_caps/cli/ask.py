"""`backend-caps ask`: a question in words, answered by an engine's source or the atlas."""

from __future__ import annotations

from pathlib import Path

import click

from backend_caps.atlas.answers import answer, answers_view
from backend_caps.atlas.build import ReleaseStore
from backend_caps.atlas.documents import ReleaseDocument
from backend_caps.atlas.question import asked_in
from backend_caps.atlas.release import reading_document
from backend_caps.cli import invocation
from backend_caps.cli.output import Format, examples, printer, working
from backend_caps.engines.read import ENGINES, read_engine


@invocation.format_option()
@click.command(
    short_help="Answer a question about backends in words.",
    epilog=examples(
        'backend-caps ask "fp8 KV, MLA, on B200" --engine sglang --source new.whl',
        'backend-caps ask "sliding window, on MI300X" --atlas atlas',
    ),
)
@click.argument("question")
@click.option("--engine", type=click.Choice(ENGINES), help="Ask the backends of this engine alone.")
@click.option(
    "--source",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Read the engine from this folder or wheel instead of the installed distribution.",
)
@click.option(
    "--atlas",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Ask the releases in this folder, which `atlas build` wrote, instead of an engine.",
)
@click.option(
    "--release", metavar="VERSION", help="Of the atlas, ask this release, not the newest."
)
def ask(
    question: str,
    engine: str | None,
    source: Path | None,
    folder: Path | None,
    release: str | None,
    format_: str,
) -> None:
    """Answer QUESTION, such as "fp8 KV, sliding window, on H100", with the backends that fit.

    Each other one has the reason and the line of source. What no line states is open, and never
    counts as a no. Words that are not understood are not guessed: what was understood comes first.
    """
    show = printer(Format(format_))
    with working("reading"):
        if folder is not None:
            releases = _of_atlas(ReleaseStore(folder / "data"), engine, release)
        else:
            releases = [_of_engine(question, engine, source)]
    document = answer(question, releases)
    show(document, answers_view(document))


def _of_engine(question: str, engine: str | None, source: Path | None) -> ReleaseDocument:
    if engine is None:
        raise click.UsageError(
            "Neither an engine nor an atlas is named. Name an engine, --engine vllm, or a folder "
            "of the atlas, --atlas FOLDER."
        )
    reading = read_engine(engine, source)
    asked = {each.capability for each in asked_in(question)}
    return reading_document(reading, reading.acceptances and reading.acceptances(asked))


def _of_atlas(data: ReleaseStore, engine: str | None, release: str | None) -> list[ReleaseDocument]:
    """Return the newest release of each distribution, or the one that is named."""
    names = [each for each in data.distributions() if engine in (None, each)]
    known = {name: data.load(name) for name in names}
    found = [own for each in known.values() for own in each if release in (None, own.version)]
    if not found:
        there = "; ".join(
            f"{name} {each[0].version} to {each[-1].version}" for name, each in known.items()
        )
        raise click.UsageError(
            f"{data.folder} has no such release; there: {there or 'none'}. Name another, or build "
            "it: backend-caps atlas build."
        )
    if release is None:
        return [each[-1] for each in known.values()]
    return found
