from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.resolution.engine import value_in, without_options, words_of
from backend_caps.resolution.errors import FlagsError
from backend_caps.resolution.flags import ServerFlags
from tests.unit.building import error_of, errors_of, flags, rows

_MEANT = "--attention-backend, --attention-context-parallel-size, --attention-data-parallel-size"
_NOTHING = "expected no value. Correct the value."
_INTEGER = "expected a valid integer. Correct the value."
_MODES = "expected 'prefill' or 'decode'. Correct the value."
_LETTER = "expected at least 1 character. Correct the value."
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
    assert error_of(lambda: flags(line)).startswith(f"{program!r} starts vllm,")


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
    unrelated = (
        "--model-path --host --port --speculative-draft-model-path --mem-fraction-static "
        "--cuda-graph-bs --trust-remote-code --ep-size --mm-attention-backend"
    )

    assert flags(_PASTED).unrelated == tuple(unrelated.split())


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
    assert flags(line).given() == {field: value}


@pytest.mark.parametrize(
    "option",
    [
        *("--ep-size", "--mm-attention-backend", "--moe-dp-size", "--speculative-draft-model-path"),
        pytest.param("--mem-frac", id="another flag's abbreviation"),
        *("--frobnicate", "--mode", "--x"),
    ],
)
def test_argv_passes_over_flags_that_are_not_ours(option: str) -> None:
    """A flag of the engine is no misspelling of ours, however near; nor is one far from ours."""
    read = flags(f"{option} 4")

    assert (read.given(), read.unrelated) == ({}, (option,))


_UNKNOWN = "is no flag of this engine, and looks like --attention-backend."
_WRITE = "Write --attention-backend, or leave it out."


@pytest.mark.parametrize(
    ("line", "text"),
    rows(f"""
a letter missing | --attention-backed fa3 | --attention-backed {_UNKNOWN} {_WRITE}
a letter too many | --attention-backends fa3 | --attention-backends {_UNKNOWN} {_WRITE}
underscores | --attention_backend fa3 | --attention_backend {_UNKNOWN} {_WRITE}
ambiguous | --attention fa3 | --attention could be {_MEANT}. Write the flag out.
no value | --page-size | --page-size has no value; {_NO_VALUE}
a flag for a value | --page-size --device cuda | --page-size has no value; {_NO_VALUE}
no file | --config | --config has no value; expected the path of a file. Add it after the flag.
a value | --disable-cuda-graph=false | --disable-cuda-graph is 'false'; {_NOTHING}
a word | --disable-cuda-graph false | --disable-cuda-graph is 'false'; {_NOTHING}
no number | --page-size many | --page-size is 'many'; {_INTEGER}
a fraction | --page-size 1.5 | --page-size is '1.5'; {_INTEGER}
too small | --tp-size 0 | --tp-size is 0; {_POSITIVE}
a mode | --speculative-attention-mode both | --speculative-attention-mode is 'both'; {_MODES}
an empty name | --attention-backend= | --attention-backend is ''; {_LETTER}
"""),
)
def test_argv_refuses(line: str, text: str) -> None:
    """A fault is one sentence on what is wrong, what was expected and what to do."""
    assert error_of(lambda: flags(line)) == text


def test_flags_of_a_file_are_words() -> None:
    """A switch that is off has no word, a list one for each element, a mapping its JSON."""
    given: dict[str, object] = {
        "page_size": 64,
        "--enable-mixed-chunk": True,
        "disable-cuda-graph": False,
        "cuda_graph_bs": [1, 2],
        "json_model_override_args": {"rope": 1},
    }

    words = [*words_of(given)]

    assert words == [
        *("--page-size", "64", "--enable-mixed-chunk", "--cuda-graph-bs", "1", "2"),
        *("--json-model-override-args", '{"rope": 1}'),
    ]


@pytest.mark.parametrize(
    ("line", "value", "kept"),
    [
        ("--a 1 --b=2 --c 3", None, "--c 3"),
        ("--a 1 --a=2 --b 2", "2", "--a 1"),
        ("--c 3 --a", None, "--c 3"),
        ("--c 3 --a", "2", "--c 3 --a"),
    ],
)
def test_options_are_left_out_with_their_values(line: str, value: str | None, kept: str) -> None:
    """Each with its value, joined or not; with a value named, only where it has that one."""
    assert without_options(line.split(), {"--a", "--b"}, value) == kept.split()


@pytest.mark.parametrize(
    ("line", "value"), [("--a 1 --b=2 --c 3", "2"), ("--b=2 --a", ""), ("--c 3", None), ("", None)]
)
def test_last_value_of_options_is_found(line: str, value: str | None) -> None:
    """Joined or not; an option that ends the line has an empty one."""
    assert value_in(line.split(), {"--a", "--b"}) == value


def test_argv_tells_of_every_fault_at_once(tmp_path: Path) -> None:
    """Several faults come as one group of our errors, those of the config file too."""
    file = tmp_path / "server.yaml"
    file.write_text("attentions-backend: fa3\n")

    group = errors_of(lambda: flags(f"--config {file} --page-size many --tp-size 0 --device"))

    of_file = f"--attentions-backend {_UNKNOWN} {_WRITE}"
    no_value = f"--device has no value; {_NO_VALUE}"
    wrong = [f"--page-size is 'many'; {_INTEGER}", f"--tp-size is 0; {_POSITIVE}"]
    assert group == ("server flags: 4 faults", [of_file, no_value, *wrong])


def test_argv_follows_the_engine_version() -> None:
    """A near-miss of ours is an error only where that engine version has no such flag."""
    argv = ["--dcp-size", "2"]

    assert ServerFlags.from_argv(argv, engine_name="sglang-0.5.23").unrelated == ("--dcp-size",)
    with pytest.raises(FlagsError):
        ServerFlags.from_argv(argv, engine_name="sglang-0.5.13")


def test_argv_reads_the_config_file(tmp_path: Path) -> None:
    """`--config FILE` is read as the server reads it, with dashes or underscores."""
    file = tmp_path / "server.yaml"
    file.write_text("attention-backend: fa3\npage_size: 64\nmodel-path: llama\n")

    read = flags(f"--config {file} --device cuda")

    assert read.given() == {"attention_backend": "fa3", "page_size": 64, "device": "cuda"}
    assert read.unrelated == ("--model-path",)


@pytest.mark.parametrize(
    "line", ["--page-size 16 --config={file}", "--config={file} --page-size 16"]
)
def test_argv_counts_more_than_its_config_file(line: str, tmp_path: Path) -> None:
    """A flag on the command line goes before the file's, wherever it stands."""
    file = tmp_path / "server.yaml"
    file.write_text("page-size: 64\n")

    assert flags(line.format(file=file)).page_size == 16
