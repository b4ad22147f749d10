from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend_caps.capability.facts import Facts
from backend_caps.capability.vocabulary import AttentionArch
from backend_caps.resolution.flags import ServerFlags
from tests.unit.building import error_of, errors_of, faults_of, flags

_PREFIX = "BACKEND_CAPS_FLAG_"
_EXPECTED = "Expected a YAML or JSON mapping of flag names to values. Correct the file or its path."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("flags.yaml", "tp-size: 8\nenable_two_batch_overlap: true\n", id="YAML"),
        pytest.param("flags.json", '{"tp_size": 8, "enable-two-batch-overlap": true}', id="JSON"),
        pytest.param(
            "flags", "tensor-parallel-size: '8'\nenable-two-batch-overlap: yes\n", id="alias"
        ),
        pytest.param(
            "flags.yaml", "tp-size: 8\nenable-two-batch-overlap: true\ndevice:\n", id="null"
        ),
    ],
)
def test_file_is_a_mapping_of_flags(name: str, text: str, tmp_path: Path) -> None:
    """A YAML or JSON file gives flags by name; `null` is not given."""
    file = tmp_path / name
    file.write_text(text)

    read = ServerFlags.from_file(file)

    assert read.given() == {"tp_size": 8, "enable_two_batch_overlap": True}


def test_file_of_nothing_gives_nothing(tmp_path: Path) -> None:
    """An empty file is one without flags."""
    file = tmp_path / "flags.yaml"
    file.write_text("# none yet\n")

    read = ServerFlags.from_file(file)

    assert read == ServerFlags()


def test_file_counts_the_flags_that_do_not_concern_us(tmp_path: Path) -> None:
    """Real flags of the engine that do not matter here are kept by name."""
    file = tmp_path / "flags.yaml"
    file.write_text("model-path: llama\nport: 30000\n")

    read = ServerFlags.from_file(file)

    assert read.unrelated == ("--model-path", "--port")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        pytest.param(b"- fa3\n", "it holds a list, or keys that are no text", id="a list"),
        pytest.param(
            b"1: fa3\n", "it holds a dict, or keys that are no text", id="a number as key"
        ),
        pytest.param(b"fa3", "it holds a str, or keys that are no text", id="a word"),
        pytest.param(
            b"{",
            "while parsing a flow node expected the node content, but found '<stream end>' "
            'in "<byte string>", line 1, column 2: { ^',
            id="no YAML",
        ),
        pytest.param(
            b"device: \xff",
            'unacceptable character #x00ff: invalid start byte in "<byte string>", position 8',
            id="no UTF-8",
        ),
    ],
)
def test_file_that_is_no_mapping_is_refused(content: bytes, cause: str, tmp_path: Path) -> None:
    """A file that holds something else is an error that says what it holds."""
    file = tmp_path / "flags.yaml"
    file.write_bytes(content)

    error = error_of(lambda: ServerFlags.from_file(file))

    assert error == f"flags file {str(file)!r} cannot be read: {cause}. {_EXPECTED}"


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing file is an error that names it."""
    file = tmp_path / "flags.yaml"

    error = error_of(lambda: ServerFlags.from_file(str(file)))

    cause = f"[Errno 2] No such file or directory: {str(file)!r}"
    assert error == f"flags file {str(file)!r} cannot be read: {cause}. {_EXPECTED}"


def test_file_with_a_switch_that_is_no_bool_is_refused(tmp_path: Path) -> None:
    """A switch in a file is true or false, and no word."""
    file = tmp_path / "flags.yaml"
    file.write_text("disable-cuda-graph: 'true'\n")

    error = error_of(lambda: ServerFlags.from_file(file))

    assert error == ("--disable-cuda-graph is 'true'; expected a valid boolean. Correct the value.")


@pytest.mark.parametrize(
    ("word", "value"),
    [(word, True) for word in ("1", "true", "YES", "on")]
    + [(word, False) for word in ("0", "False", "no", "OFF")],
)
def test_environment_gives_a_switch(word: str, value: bool) -> None:
    """A switch in the environment is one of the usual words, in any case."""
    environ = {f"{_PREFIX}DISABLE_CUDA_GRAPH": word}

    read = ServerFlags.from_environ(environ)

    assert read.given() == {"disable_cuda_graph": value}


def test_environment_gives_values_as_words() -> None:
    """A value in the environment is read like one on a command line."""
    environ = {
        f"{_PREFIX}ATTENTION_BACKEND": "fa3",
        f"{_PREFIX}CONTEXT_LENGTH": "32k",
        "PATH": "/bin",
        "BACKEND_CAPS_PLUGINS": "fa3-caps",
    }

    read = ServerFlags.from_environ(environ)

    assert read.given() == {"attention_backend": "fa3", "context_length": 32000}


@pytest.mark.parametrize(
    ("variable", "word", "text"),
    [
        pytest.param(
            "PAGE_SIZES",
            "64",
            f"{_PREFIX}PAGE_SIZES is no flag of this engine, and looks like {_PREFIX}PAGE_SIZE. "
            f"Write {_PREFIX}PAGE_SIZE, or leave it out.",
            id="unknown",
        ),
        pytest.param(
            "ZZZ",
            "64",
            f"{_PREFIX}ZZZ is no flag of this engine, and looks like {_PREFIX}TP_SIZE. "
            f"Write {_PREFIX}TP_SIZE, or leave it out.",
            id="far from any",
        ),
        pytest.param(
            "DISABLE_CUDA_GRAPH",
            "maybe",
            f"{_PREFIX}DISABLE_CUDA_GRAPH is 'maybe'; expected 1, true, yes, on, 0, false, no or "
            "off. Correct the value.",
            id="no switch",
        ),
        pytest.param(
            "PAGE_SIZE",
            "many",
            "--page-size is 'many'; expected a valid integer. Correct the value.",
            id="no number",
        ),
    ],
)
def test_environment_refuses(variable: str, word: str, text: str) -> None:
    """A variable with our prefix must be one of our flags, with a value that it can have."""
    environ = {_PREFIX + variable: word}

    error = error_of(lambda: ServerFlags.from_environ(environ))

    assert error == text


def test_mapping_gives_values_of_their_own_types() -> None:
    """A mapping holds typed values by name, with dashes or underscores, and aliases."""
    values = {
        "attention-backend": "fa3",
        "tp_size": 8,
        "--data-parallel-size": 2,
        "enable_mixed_chunk": True,
        "device": None,
    }

    read = ServerFlags.from_mapping(values)

    assert read.given() == {
        "attention_backend": "fa3",
        "tp_size": 8,
        "dp_size": 2,
        "enable_mixed_chunk": True,
        "device": None,
    }


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        pytest.param(
            "tp_size", "8", "--tp-size is '8'; expected a valid integer.", id="a word for a number"
        ),
        pytest.param(
            "tp_size",
            True,
            "--tp-size is True; expected a valid integer.",
            id="a bool for a number",
        ),
        pytest.param(
            "disable_cuda_graph",
            1,
            "--disable-cuda-graph is 1; expected a valid boolean.",
            id="a number for a switch",
        ),
        pytest.param(
            "disable_cuda_graph",
            None,
            "--disable-cuda-graph is None; expected a valid boolean.",
            id="nothing for a switch",
        ),
        pytest.param(
            "attention_backend",
            3,
            "--attention-backend is 3; expected a valid string.",
            id="a number for a name",
        ),
        pytest.param(
            "speculative_algorithm",
            3,
            "--speculative-algorithm is 3; expected a valid string.",
            id="a number for an algorithm",
        ),
        pytest.param(
            "kv_cache_dtype",
            8,
            "--kv-cache-dtype is 8; expected a valid string.",
            id="a number for a dtype",
        ),
    ],
)
def test_mapping_refuses_values_of_other_types(name: str, value: object, text: str) -> None:
    """A value in a mapping is never converted."""
    error = error_of(lambda: ServerFlags.from_mapping({name: value}))

    assert error == f"{text} Correct the value."


def test_mapping_refuses_a_near_miss() -> None:
    """A misspelt name in a mapping is an error with the suggestion."""
    error = error_of(lambda: ServerFlags.from_mapping({"attentions_backend": "fa3"}))

    assert error == (
        "--attentions-backend is no flag of this engine, and looks like --attention-backend. "
        "Write --attention-backend, or leave it out."
    )


def test_mapping_tells_of_every_fault_at_once() -> None:
    """Several faults of one mapping come as one group."""
    values = {"attentions_backend": "fa3", "tp_size": "8"}

    group = errors_of(lambda: ServerFlags.from_mapping(values))

    assert group == (
        "server flags: 2 faults",
        [
            (
                "--attentions-backend is no flag of this engine, and looks like "
                "--attention-backend. Write --attention-backend, or leave it out."
            ),
            "--tp-size is '8'; expected a valid integer. Correct the value.",
        ],
    )


def test_object_is_read_by_attribute() -> None:
    """An engine's live arguments are read by SGLang's names; what is missing is not given."""
    args = SimpleNamespace(
        attention_backend="fa3", tp_size=8, enable_mixed_chunk=False, model_path="llama"
    )

    read = ServerFlags.from_object(args)

    assert read.given() == {
        "attention_backend": "fa3",
        "tp_size": 8,
        "enable_mixed_chunk": False,
    }


def test_object_with_an_attribute_of_another_type_is_refused() -> None:
    """A live value that is no bool is an error, not a truth value."""
    args = SimpleNamespace(enable_two_batch_overlap="no")

    error = error_of(lambda: ServerFlags.from_object(args))

    assert error == (
        "--enable-two-batch-overlap is 'no'; expected a valid boolean. Correct the value."
    )


def test_flags_over_others_keep_what_only_those_say() -> None:
    """Of two sources the nearer counts where both speak, defaults left aside."""
    file = ServerFlags.from_mapping({"page_size": 64, "device": "cuda", "port": 1})
    line = flags("--page-size 16 --host x")

    both = line.over(file)

    assert (both.given(), both.unrelated) == (
        {"page_size": 16, "device": "cuda"},
        ("--port", "--host"),
    )


def test_flags_updated_are_validated() -> None:
    """A change is checked like a flag."""
    faults = faults_of(lambda: flags().updated({"page_size": 0}))

    assert faults == [("page_size", "Input should be greater than or equal to 1")]


def test_flags_updated_keep_the_rest() -> None:
    """A change leaves the other flags as they are."""
    read = flags("--page-size 16 --device cuda --host x")

    changed = read.updated({"page_size": 64})

    assert (changed.page_size, changed.device, changed.unrelated) == (64, "cuda", ("--host",))


@pytest.mark.parametrize(
    ("line", "facts", "known"),
    [
        pytest.param("", Facts(), {"speculative_algorithm": "NONE"}, id="no speculation"),
        pytest.param(
            "--speculative-algorithm EAGLE",
            Facts(),
            {"speculative_algorithm": "EAGLE"},
            id="speculation",
        ),
        pytest.param("--kv-cache-dtype auto", Facts(), {"kv_cache_dtype": None}, id="auto is open"),
        pytest.param(
            "--kv-cache-dtype fp8_e5m2",
            Facts(),
            {"kv_cache_dtype": "fp8_e5m2"},
            id="a stated dtype is known",
        ),
        pytest.param(
            "--kv-cache-dtype fp8_e5m2 --page-size 16",
            Facts(kv_cache_dtype="bfloat16"),
            {"kv_cache_dtype": None, "page_size": 16},
            id="what facts contradict is not known",
        ),
        pytest.param(
            "--kv-cache-dtype auto --device cuda:1",
            Facts(kv_cache_dtype="bf16", dtype="torch.half", device="cuda:0"),
            {"kv_cache_dtype": "bfloat16", "dtype": "float16", "device": "cuda"},
            id="other spellings",
        ),
        pytest.param(
            "--device auto",
            Facts(kv_cache_dtype="auto", dtype="auto"),
            {"device": None, "kv_cache_dtype": None, "dtype": None},
            id="auto is not known",
        ),
        pytest.param("", Facts(), {"device": None, "page_size": None}, id="not given is not known"),
        pytest.param("", Facts(), {"enable_two_batch_overlap": False, "tp_size": 1}, id="defaults"),
        pytest.param(
            "",
            Facts(attention_arch=AttentionArch.MLA),
            {"attention_arch": AttentionArch.MLA},
            id="facts that are no flags",
        ),
    ],
)
def test_situation_holds_what_is_known(line: str, facts: Facts, known: dict[str, object]) -> None:
    """Conditions are asked of flags and facts together; what is open is left out."""
    situation = flags(line).situation(facts)

    assert {name: situation.get(name) for name in known} == known


def test_flags_fill_the_facts_that_are_open() -> None:
    """What flags say of machine and model becomes fact where no fact says otherwise."""
    read = flags("--device cuda --page-size 64 --context-length 8192 --kv-cache-dtype fp8_e5m2")

    facts = read.with_facts(Facts(page_size=16, head_size=128))

    assert facts == Facts(
        device="cuda",
        page_size=16,
        head_size=128,
        context_length=8192,
        kv_cache_dtype="fp8_e5m2",
    )


def test_flags_survive_pickling() -> None:
    """Flags cross into another process and are the same there."""
    read = flags("--page-size 16 --host x")

    carried = pickle.loads(pickle.dumps(read))  # noqa: S301 - our own bytes

    assert (carried, carried.unrelated) == (read, ("--host",))


def test_flags_refuse_an_unknown_name() -> None:
    """The model itself takes no name that it does not have."""
    faults = faults_of(lambda: ServerFlags.model_validate({"attention_backends": "fa3"}))

    assert faults == [("attention_backends", "Extra inputs are not permitted")]
