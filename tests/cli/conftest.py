"""The command line in this process, over a folder of plugins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli
from backend_caps.report.generate_documents import GenerateDocument

CASES = Path(__file__).parent / "cases"
"""Command lines with the status and the sentence that they end with."""
_VARIABLE = re.compile("[A-Z_]+=")
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
BACKEND = """\
from backend_caps import Capabilities, Declaration, Role

DECLARATION = Declaration(
    capabilities=Capabilities(page_sizes="any", {says}), implementation="{name}_caps:build"
)

def build(site):
    import backend_caps_torch_native
    class Own(backend_caps_torch_native.{base}):
        def init_forward_metadata(self, batch):
            {prepares}
            super().init_forward_metadata(batch)

        def forward(self, q, k, v, layer, batch, **said):
            output = super().forward(q, k, v, layer, batch, **said)
            return {returns}
    return Own(site)
"""
PREPARES_AT = 1 + BACKEND.splitlines().index("            {prepares}")
"""The line of what it does before a forward."""
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

    def install_backend(
        self,
        name: str,
        says: str,
        *,
        prepares: str = "pass",
        returns: str = "output",
        base: str = "TorchPadded",
    ) -> None:
        """Install a backend with code of its own: what it says, does first, and returns."""
        source = BACKEND.format(name=name, says=says, prepares=prepares, returns=returns, base=base)
        self.install(name, f"[backend_caps.backends]\n{name} = {name}_caps:DECLARATION\n", source)
        sys.modules.pop(f"{name}_caps", None)

    def run(self, line: str) -> Result:
        """Run a command line; `@` at the head of a word is the folder of plugins."""
        own, _, flags = re.sub(r"(?<!\S)@", str(self.root), line).partition(" -- ")
        return CliRunner().invoke(
            cli, own.split(), obj=Invocation(server_flags=tuple(flags.split()))
        )

    def json(self, line: str) -> Any:
        """Run a command line that ends well or finds something; read the JSON that it prints."""
        result = self.run(line)
        assert result.stdout, result.stderr
        return json.loads(result.stdout)

    def transcript(self, line: str) -> str:
        """Run a command line, before which variables may be set; return all that is printed."""
        words = line.split(" ")
        variables = [word.partition("=") for word in takewhile(_VARIABLE.match, words)]
        with pytest.MonkeyPatch.context() as environ:
            for name, _, value in variables:
                environ.setenv(name, value)
            result = self.run(" ".join(words[len(variables) :]))
        printed = result.stdout + result.stderr
        for root in (str(self.root), str(self.root).replace("_", "\\_")):  # in markdown too
            printed = printed.replace(root, "@")
        printed = "\n".join(own.rstrip() for own in printed.splitlines()).strip("\n")
        return f"{printed}\n[{result.exit_code}]" if result.exit_code else printed

    def refusal(self, line: str) -> str:
        """Run a command line that prints no document; return its status and last sentence."""
        result = self.run(line)
        assert result.stdout == ""
        last = result.stderr.splitlines()[-1]
        return f"{result.exit_code} {last}".replace(str(self.root), "@")


def generated(
    line: CommandLine, options: str = "", flags: str = "--attention-backend torch_native"
) -> GenerateDocument:
    """Run prompts, and read what came of them."""
    result = line.run(f"generate --format json --max-new-tokens 6 {options} -- {flags}")
    assert result.exit_code == 0, result.stderr
    return GenerateDocument.model_validate_json(result.stdout)


def outputs_of(document: GenerateDocument) -> list[list[int]]:
    """List the tokens that followed each prompt."""
    return [each.output for each in document.outputs]


def process(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a process of its own; `env` unless it is this environment."""
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session", autouse=True)
def unset() -> Iterator[None]:
    """No setting of this environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("BACKEND_CAPS_")]:
            patch.delenv(name)
        yield


@pytest.fixture
def acme(tmp_path: Path) -> CommandLine:
    """Two backends of one plugin: one reads lengths on the host, the other does not."""
    line = CommandLine(tmp_path / "site")
    line.install("acme", ENTRY_POINTS, DECLARATIONS)
    return line


@pytest.fixture
def line(acme: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line over the one plugin that comes with the package."""
    monkeypatch.setenv("BACKEND_CAPS_PLUGINS", "backend-caps-torch-native")
    return acme
