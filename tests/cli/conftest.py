"""The command line in this process, over a folder of plugins."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli

DECLARATIONS = """\
from backend_caps import BatchKind, Capabilities, Declaration, Given, Phase, Role, When

READS = Declaration(
    capabilities=Capabilities(host_seq_lens="exact", roles=set(Role), page_sizes="any")
)
LEAN = Declaration(
    capabilities=Capabilities(
        needs_cpu_seq_lens=False,
        max_context_len_known=True,
        roles=set(Role),
        graph_replay={BatchKind.SINGLE_TOKEN_DECODE},
        page_sizes="any",
    ),
    conditions=[
        When(
            given=Given(kv_cache_dtype={"fp8_e5m2"}),
            capabilities=Capabilities(needs_cpu_seq_lens=True),
            reason="the fp8 path sizes its workspace on the host",
        )
    ],
)
"""
ENTRY_POINTS = """\
[backend_caps.backends]
acme_lean = acme_caps:LEAN
acme_reads = acme_caps:READS
"""


@dataclass(frozen=True)
class CommandLine:
    """Runs commands over the plugins of one folder."""

    root: Path

    def install(self, name: str, entry_points: str, source: str) -> None:
        """Put a distribution with one module into the folder."""
        info = self.root / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "entry_points.txt").write_text(entry_points)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (self.root / f"{name}_caps.py").write_text(source)

    def run(self, line: str) -> Result:
        """Run a command line; `@` at the head of a word is the folder of plugins."""
        words = re.sub(r"(?<!\S)@", str(self.root), line)
        own, _, flags = words.partition(" -- ")
        return CliRunner().invoke(
            cli, own.split(), obj=Invocation(server_flags=tuple(flags.split()))
        )


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Two backends of one plugin: one reads lengths on the host, the other does not."""
    for variable in [name for name in os.environ if name.startswith("BACKEND_CAPS_")]:
        monkeypatch.delenv(variable)
    line = CommandLine(tmp_path / "site")
    line.install("acme", ENTRY_POINTS, DECLARATIONS)
    return line
