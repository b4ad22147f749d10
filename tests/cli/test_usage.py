"""What the command line says to those who hold it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.capability.kind import Scope
from backend_caps.capability.vocabulary import CAPABILITIES
from tests.cli.conftest import CommandLine

_HELD = ", ".join(name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE)


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        pytest.param(
            "resolve --path @ --attention-backend acme_lean",
            2,
            "Error: No such option '--attention-backend'. Server flags go after --.",
            id="server flag before --",
        ),
        pytest.param(
            "resolve --path @ -- --atention-backend acme_lean",
            2,
            "error: --atention-backend is no flag of this engine, and looks like "
            "--attention-backend. Write --attention-backend, or leave it out.",
            id="misspelled server flag",
        ),
        pytest.param(
            "trace --path @ -- vllm serve my/model --block-size 16",
            2,
            "error: 'vllm serve' starts vllm, whose flags and routing are not read; expected the "
            "flags of sglang-0.5.13. Write them in place of 'vllm serve' and what follows it; "
            "backend-caps report --engine vllm, without server flags, shows what vllm's backends "
            "say.",
            id="another engine's command line",
        ),
        pytest.param(
            "resolve --path @ -- --attention-backend acme_lea",
            2,
            "error: no backend 'acme_lea' is declared (--attention-backend); declared: "
            "acme_lean, acme_reads. Did you mean 'acme_lean'?",
            id="misspelled backend",
        ),
        pytest.param(
            "resolve --path @ --policy strict -- --attention-backend fa3",
            1,
            "error: no installed plugin declares backend 'fa3' (--attention-backend). Add --engine "
            "sglang, where a command takes it, to read the engine's own; or install a plugin that "
            "declares it; or name a backend that is declared: acme_lean, acme_reads.",
            id="missing backend under strict",
        ),
        pytest.param(
            "resolve --path @ --fact head_size",
            2,
            "Error: --fact head_size has no value; expected --fact NAME=VALUE.",
            id="fact without a value",
        ),
        pytest.param(
            "resolve --path @ --fact head_size=[",
            2,
            "Error: --fact head_size=[ cannot be read; expected a word, a number or a list such "
            "as [a, b].",
            id="fact that is no YAML",
        ),
        pytest.param(
            "resolve --path @ --fact head_size=wide",
            2,
            "Error: --fact head_size: Input should be a valid integer; got 'wide'.",
            id="fact of another type",
        ),
        pytest.param(
            "resolve --path @ -- --device gpu",
            2,
            "error: --device is 'gpu'; expected a device type as torch calls it (did you mean "
            "'cuda'?). Correct the value.",
            id="device by another name",
        ),
        pytest.param(
            "resolve --path @ --fact gpu=h100",
            2,
            "Error: --fact has no 'gpu'; it has: attention_arch, compute_capability, "
            "context_length, device, dtype, head_size, kv_cache_dtype, page_size, rocm.",
            id="unknown fact",
        ),
        pytest.param(
            "resolve --path @ --unsafe-override roles=[target]",
            2,
            "error: unsafe_override roles=target cannot be applied; expected a capability that a "
            f"plan holds: {_HELD}. Correct its name or value.",
            id="override of what no plan holds",
        ),
        pytest.param(
            "resolve --path @ --flags-file @/none.yaml",
            2,
            "error: flags file '@/none.yaml' cannot be read: [Errno 2] No such file or "
            "directory: '@/none.yaml'. Expected a YAML or JSON mapping of flag names to values. "
            "Correct the file or its path.",
            id="flags file that is not there",
        ),
        pytest.param(
            "new-plugn acme",
            2,
            "Error: No such command 'new-plugn'. Did you mean 'new-plugin'?",
            id="misspelled command that is loaded late",
        ),
        pytest.param(
            "repor",
            2,
            "Error: No such command 'repor'. Did you mean 'report'?",
            id="misspelled command",
        ),
        pytest.param(
            "resolve --polcy strict",
            2,
            "Error: No such option '--polcy'. Server flags go after --. Did you mean '--policy'?",
            id="misspelled option",
        ),
        pytest.param(
            "new-plugin acme --int folder",
            2,
            "Error: No such option '--int'. Did you mean '--into'?",
            id="misspelled option of a command without server flags",
        ),
    ],
)
def test_error_is_said_and_counted(acme: CommandLine, line: str, status: int, message: str) -> None:
    """Each mistake gets its sentence on standard error, and its exit status."""
    result = acme.run(line)

    assert result.stderr.splitlines()[-1] == message.replace("@/", f"{acme.root}/")
    assert result.exit_code == status
    assert result.stdout == ""


def test_unknown_command_lists_those_there_are(acme: CommandLine) -> None:
    """A name that is near to none is answered with all of them."""
    result = acme.run("frobnicate")

    told = result.stderr.splitlines()[-1]
    assert result.exit_code == 2
    assert told.startswith("Error: No such command 'frobnicate'. There are: ")
    assert "generate, lock, new-plugin, relay, report" in told


def test_every_fault_is_said(acme: CommandLine) -> None:
    """Several faults of one input are all said, each on a line."""
    result = acme.run("resolve --path @ -- --page-size many --attention-backend")

    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: --attention-backend has no value; expected a value. Add it after the flag.",
        "error: --page-size is 'many'; expected a valid integer. Correct the value.",
    ]


def test_override_of_an_unknown_name_lists_the_known(acme: CommandLine) -> None:
    """An override of a name that there is none of is refused."""
    result = acme.run("resolve --path @ --unsafe-override speed=high")

    assert result.exit_code == 2
    assert "Error: --unsafe-override has no 'speed'; it has: attention_arch," in result.stderr


def test_flags_that_do_not_matter_are_counted(acme: CommandLine) -> None:
    """A whole command line may be pasted; what does not matter here is counted."""
    result = acme.run("resolve --path @ -- --attention-backend acme_lean --ep-size 2 --model x")

    assert result.exit_code == 0
    assert result.stderr == "server flags that do not matter here: 2 (--verbose names them)\n"


def test_flags_that_do_not_matter_are_named_under_verbose(acme: CommandLine) -> None:
    """Under --verbose what does not matter here is named."""
    result = acme.run("resolve --path @ --verbose -- --mm-attention-backend fa3 --ep-size 2")

    told = "server flags that do not matter here: 2 (--mm-attention-backend, --ep-size)\n"
    assert result.stderr == told


def test_flags_come_from_everywhere(
    acme: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line goes before the file, and the file before the environment."""
    file = tmp_path / "flags.yaml"
    file.write_text("attention-backend: acme_lean\npage-size: 16\n")
    monkeypatch.setenv("BACKEND_CAPS_FLAG_ATTENTION_BACKEND", "acme_reads")
    monkeypatch.setenv("BACKEND_CAPS_FLAG_PAGE_SIZE", "32")
    line = f"explain page_sizes --path @ --flags-file {file}"

    from_file = acme.run(line)
    from_line = acme.run(f"{line} -- --attention-backend acme_reads")

    assert "backend acme_lean" in from_file.stdout
    assert "backend acme_reads" in from_line.stdout
    assert "acme_lean" not in from_line.stdout


@pytest.mark.parametrize("command", ["report", "resolve", "explain", "relay"])
def test_help_shows_where_server_flags_go(acme: CommandLine, command: str) -> None:
    """Each command's usage line shows the place of the server's flags."""
    result = acme.run(f"{command} --help")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].endswith("[-- SERVER FLAGS...]")
