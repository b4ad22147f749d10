"""`backend-caps facts`: what is known of this machine."""

from __future__ import annotations

from typing import Annotated, Literal

import click
from pydantic import Field

from backend_caps.capability.facts import Facts, text_of
from backend_caps.capability.gpu import gpu_named
from backend_caps.cli.invocation import format_option
from backend_caps.cli.output import Format, examples, loading_torch, printer
from backend_caps.report.document import Document
from backend_caps.report.sections import Lines, Table


class FactsDocument(Document):
    """What torch finds on this machine."""

    schema_: Annotated[Literal["backend-caps/facts@1"], Field(alias="schema")]
    facts: dict[str, str]
    """Each fact as `--fact` takes it."""
    unnamed_gpu: str | None
    """Torch's name of a GPU that has no short one here; null where there is none."""


@click.command(epilog=examples("backend-caps facts", "backend-caps facts --format json"))
@format_option()
def facts(format_: str) -> None:
    """Show what is known of this machine.

    Another one takes the options that it prints in place of its own devices.
    """
    show = printer(Format(format_))
    # Loads torch, which is asked for the devices.
    with loading_torch("facts", extra="relay"):
        document = facts_document()
    rows = tuple(document.facts.items())
    words = " ".join(f"--fact {name}={value}" for name, value in rows)
    lines = [f"As options: {words}"]
    if document.unnamed_gpu is not None:
        lines.append(f"{document.unnamed_gpu} has no short name here; its numbers are shown.")
    show(document, [Table(("fact", "value"), rows), Lines(tuple(lines))])


def facts_document() -> FactsDocument:
    """Ask torch for the devices of this machine."""
    import torch  # noqa: PLC0415 - most commands run without it

    from backend_caps.startup.configure import with_device  # noqa: PLC0415 - it imports torch

    is_gpu = torch.cuda.is_available()
    known = with_device(Facts(), "cuda" if is_gpu else "cpu")
    unnamed = None
    if is_gpu:
        name = torch.cuda.get_device_name()
        gpu = gpu_named(name)
        unnamed = name if gpu is None else None
        own = {} if gpu is None else {"device_name": gpu.key}
        known = Facts.model_validate(
            {**known.known(), **own, "num_gpus": torch.cuda.device_count()}
        )
    return FactsDocument(
        schema_="backend-caps/facts@1",
        facts={name: text_of(value) for name, value in known.known().items()},
        unnamed_gpu=unnamed,
    )
