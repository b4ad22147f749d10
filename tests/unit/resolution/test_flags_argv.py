from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.errors import BackendCapsError
from backend_caps.resolution.errors import FlagsError
from backend_caps.resolution.flags import ServerFlags
from tests.unit.building import error_of, errors_of, flags

_NO_VALUE = "expected a value. Add it after the flag."
_POSITIVE = "expected greater than or equal to 1. Correct the value."

_API_SERVER = "vllm.entrypoints.openai.api_server"
_PASTED = """\
python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0
--port 30000 --tp 8 --dp-size=2 --attention-backend fa3 --speculative-algorithm EAGLE3
--speculative-draft-model-path lmsys/eagle3 --speculative-num-steps 3 --speculative-eagle-topk 1
--speculative-num-draft-tokens 4 --mem-fraction-static 0.85 --cuda-graph-bs 1 2 4 8
--trust-remote-code --ep-size 4 --mm-attention-backend fa3 --kv-cache-dtype fp8_e4m3
--enable-mixed-chunk --context-length 32k
"""


@pytest.mark.parametrize(
    ("line", "program"),
    [
        pytest.param("vllm serve my/model --tp 2", "vllm serve", id="program"),
        pytest.param("/opt/bin/vllm serve my/model", "/opt/bin/vllm serve", id="path"),
        pytest.param(f"python -m {_API_SERVER} --model m", f"-m {_API_SERVER}", id="module"),
    ],
)
def test_command_line_of_another_engine_is_refused(line: str, program: str) -> None:
    """The words of an engine that there are no plans for are not read as another's."""
    with pytest.raises(FlagsError) as raised:
        flags(line)

    assert raised.value.code == "other-engine"
    assert f"{program!r} starts vllm," in str(raised.value)


@pytest.mark.parametrize("line", ["docker exec vllm sglang serve --tp 2", "--tp 2 vllm serve"])
def test_word_that_starts_no_other_engine_is_passed_over(line: str) -> None:
    """What has another engine's name, and does not start it, says nothing."""
    assert flags(line).given() == {"tp_size": 2}


def test_pasted_command_line_gives_every_flag_that_concerns_us() -> None:
    """A whole real command line is read, with words before the first flag passed over."""
    read = flags(_PASTED)

    assert read.given() == {
        "tp_size": 8,
        "dp_size": 2,
        "attention_backend": "fa3",
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "kv_cache_dtype": "fp8_e4m3",
        "enable_mixed_chunk": True,
        "context_length": 32000,
    }


def test_pasted_command_line_counts_the_flags_that_do_not_concern_us() -> None:
    """Real flags of the engine that do not matter here are kept by name, in order."""
    read = flags(_PASTED)

    assert read.unrelated == (
        "--model-path",
        "--host",
        "--port",
        "--speculative-draft-model-path",
        "--mem-fraction-static",
        "--cuda-graph-bs",
        "--trust-remote-code",
        "--ep-size",
        "--mm-attention-backend",
    )


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        pytest.param("--attention-backend fa3", "attention_backend", "fa3", id="next word"),
        pytest.param("--attention-backend=fa3", "attention_backend", "fa3", id="equals sign"),
        pytest.param("--tp-size 8", "tp_size", 8, id="main name"),
        pytest.param("--tensor-parallel-size 8", "tp_size", 8, id="alias"),
        pytest.param("--tensor-parallel-size=8", "tp_size", 8, id="alias with equals sign"),
        pytest.param("--tp 8", "tp_size", 8, id="abbreviation"),
        pytest.param("--pipeline-parallel-size 2", "pp_size", 2, id="alias of pp"),
        pytest.param("--data-parallel-size 2", "dp_size", 2, id="alias of dp"),
        pytest.param("--speculative-eagle 4", "speculative_eagle_topk", 4, id="abbreviated name"),
        pytest.param("--page-size 16 --page-size 64", "page_size", 64, id="the last one counts"),
        pytest.param("--disable-overlap-schedule", "disable_overlap_schedule", True, id="switch"),
        pytest.param("--page-size 1k", "page_size", 1000, id="thousands"),
        pytest.param("--page-size 1Ki", "page_size", 1024, id="binary thousands"),
        pytest.param("--context-length 1M", "context_length", 10**6, id="millions"),
        pytest.param("--context-length 1Mi", "context_length", 2**20, id="binary millions"),
        pytest.param("--context-length 2G", "context_length", 2 * 10**9, id="thousand millions"),
        pytest.param("--context-length 1Gi", "context_length", 2**30, id="binary giga"),
        pytest.param("--speculative-num-steps 0", "speculative_num_steps", 0, id="no steps"),
        pytest.param("--speculative-algorithm eagle", "speculative_algorithm", "EAGLE", id="case"),
        pytest.param("--speculative-algorithm NEXTN", "speculative_algorithm", "EAGLE", id="NEXTN"),
        pytest.param("--speculative-algorithm none", "speculative_algorithm", None, id="none"),
        pytest.param("--kv-cache-dtype bf16", "kv_cache_dtype", "bfloat16", id="short dtype"),
        pytest.param("--device cuda", "device", "cuda", id="device"),
    ],
)
def test_argv_sets_a_flag(line: str, field: str, value: object) -> None:
    """A flag is read as the engine reads it: aliases, abbreviations, `=`, suffixes."""
    read = flags(line)

    assert read.given() == {field: value}


@pytest.mark.parametrize(
    "option",
    ["--ep-size", "--mm-attention-backend", "--moe-dp-size", "--speculative-draft-model-path"],
)
def test_argv_takes_a_real_flag_for_itself(option: str) -> None:
    """A flag of the engine is no misspelling of ours, however near."""
    read = flags(f"{option} 4")

    assert (read.given(), read.unrelated) == ({}, (option,))


@pytest.mark.parametrize("option", ["--frobnicate", "--mode", "--x"])
def test_argv_passes_over_flags_far_from_ours(option: str) -> None:
    """What looks like none of ours, and is none, is counted as unrelated."""
    read = flags(f"{option} 4")

    assert (read.given(), read.unrelated) == ({}, (option,))


def test_argv_gives_an_abbreviation_of_another_flag_to_it() -> None:
    """An abbreviation that argparse takes for a flag that does not concern us is unrelated."""
    read = flags("--mem-frac 0.8")

    assert read.unrelated == ("--mem-frac",)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(
            "--attention-backed fa3",
            "--attention-backed is no flag of this engine, and looks like --attention-backend. "
            "Write --attention-backend, or leave it out.",
            id="a letter missing",
        ),
        pytest.param(
            "--attention-backends fa3",
            "--attention-backends is no flag of this engine, and looks like --attention-backend. "
            "Write --attention-backend, or leave it out.",
            id="a letter too many",
        ),
        pytest.param(
            "--attention_backend fa3",
            "--attention_backend is no flag of this engine, and looks like --attention-backend. "
            "Write --attention-backend, or leave it out.",
            id="underscores",
        ),
        pytest.param(
            "--disable-c",
            "--disable-c could be --disable-chunked-prefix-cache, --disable-cuda-graph, "
            "--disable-cuda-graph-padding, "
            "--disable-custom-all-reduce. Write the flag out.",
            id="an ambiguous abbreviation",
        ),
        pytest.param(
            "--attention fa3",
            "--attention could be --attention-backend, --attention-context-parallel-size. "
            "Write the flag out.",
            id="an ambiguous abbreviation whose first meaning is ours",
        ),
        pytest.param("--page-size", f"--page-size has no value; {_NO_VALUE}", id="no value"),
        pytest.param(
            "--page-size --device cuda",
            f"--page-size has no value; {_NO_VALUE}",
            id="a flag in place of the value",
        ),
        pytest.param(
            "--config",
            "--config has no value; expected the path of a file. Add it after the flag.",
            id="config without its file",
        ),
        pytest.param(
            "--disable-cuda-graph=false",
            "--disable-cuda-graph is 'false'; expected no value. Correct the value.",
            id="a switch with a value",
        ),
        pytest.param(
            "--disable-cuda-graph false",
            "--disable-cuda-graph is 'false'; expected no value. Correct the value.",
            id="a switch before a word",
        ),
        pytest.param(
            "--page-size many",
            "--page-size is 'many'; expected a valid integer. Correct the value.",
            id="no number",
        ),
        pytest.param(
            "--page-size 1.5",
            "--page-size is '1.5'; expected a valid integer. Correct the value.",
            id="a fraction",
        ),
        pytest.param("--tp-size 0", f"--tp-size is 0; {_POSITIVE}", id="too small"),
        pytest.param(
            "--speculative-attention-mode both",
            "--speculative-attention-mode is 'both'; expected 'prefill' or 'decode'. "
            "Correct the value.",
            id="an unknown mode",
        ),
        pytest.param(
            "--attention-backend=",
            "--attention-backend is ''; expected at least 1 character. Correct the value.",
            id="an empty name",
        ),
    ],
)
def test_argv_refuses(line: str, text: str) -> None:
    """A fault is one sentence on what is wrong, what was expected and what to do."""
    error = error_of(lambda: flags(line))

    assert error == text


def test_argv_tells_of_every_fault_at_once() -> None:
    """Several faults of one command line come as one group, spelling and values alike."""
    line = "--attention-backed fa3 --page-size many --tp-size 0 --device"

    group = errors_of(lambda: flags(line))

    assert group == (
        "server flags: 4 faults",
        [
            (
                "--attention-backed is no flag of this engine, and looks like --attention-backend. "
                "Write --attention-backend, or leave it out."
            ),
            f"--device has no value; {_NO_VALUE}",
            "--page-size is 'many'; expected a valid integer. Correct the value.",
            f"--tp-size is 0; {_POSITIVE}",
        ],
    )


@pytest.mark.parametrize(
    ("engine_name", "unrelated"),
    [
        pytest.param("sglang-0.5.23", ("--dcp-size",), id="the version that has it"),
        pytest.param("sglang-0.5.13", None, id="the version that has it not"),
    ],
)
def test_argv_follows_the_engine_version(
    engine_name: str, unrelated: tuple[str, ...] | None
) -> None:
    """A near-miss of ours is an error only where that engine version has no such flag."""
    argv = ["--dcp-size", "2"]

    try:
        actual = ServerFlags.from_argv(argv, engine_name=engine_name).unrelated
    except FlagsError:
        actual = None

    assert actual == unrelated


def test_argv_of_nothing_is_the_engines_defaults() -> None:
    """A server without flags is one with the engine's own defaults."""
    read = flags()

    assert (read.given(), read.unrelated, read) == ({}, (), ServerFlags())


def test_argv_reads_the_config_file(tmp_path: Path) -> None:
    """`--config FILE` is read as the server reads it, with dashes or underscores."""
    file = tmp_path / "server.yaml"
    file.write_text("attention-backend: fa3\npage_size: 64\nmodel-path: llama\n")

    read = flags(f"--config {file} --device cuda")

    assert (read.given(), read.unrelated) == (
        {"attention_backend": "fa3", "page_size": 64, "device": "cuda"},
        ("--model-path",),
    )


@pytest.mark.parametrize(
    "line", ["--page-size 16 --config={file}", "--config={file} --page-size 16"]
)
def test_argv_counts_more_than_its_config_file(line: str, tmp_path: Path) -> None:
    """A flag on the command line goes before the file's, wherever it stands."""
    file = tmp_path / "server.yaml"
    file.write_text("page-size: 64\n")

    read = flags(line.format(file=file))

    assert read.page_size == 16


def test_argv_tells_of_faults_in_its_config_file(tmp_path: Path) -> None:
    """A fault in the file is a fault of the command line."""
    file = tmp_path / "server.yaml"
    file.write_text("attentions-backend: fa3\n")

    error = error_of(lambda: flags(f"--config {file}"))

    assert error == (
        "--attentions-backend is no flag of this engine, and looks like --attention-backend. "
        "Write --attention-backend, or leave it out."
    )


def test_argv_errors_are_ours() -> None:
    """A caller that handles `BackendCapsError` handles every fault of a command line."""
    with pytest.raises(ExceptionGroup) as raised:
        flags("--page-size many --device")

    assert raised.group_contains(BackendCapsError)
