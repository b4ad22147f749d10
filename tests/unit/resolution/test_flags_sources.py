from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend_caps import AttentionArch, Facts, ServerFlags
from backend_caps.resolution.engine import option_of
from tests.unit.building import error_of, faults_of, flags

_PREFIX = "BACKEND_CAPS_FLAG_"
_GIVEN: Mapping[str, object] = {"tp_size": 8, "enable_mixed_chunk": True}
_EXPECTED = "Expected a YAML or JSON mapping of flag names to values. Correct the file or its path."


@pytest.mark.parametrize(
    ("text", "given", "unrelated"),
    [
        pytest.param("tp-size: 8\nenable_mixed_chunk: true\n", _GIVEN, (), id="YAML"),
        pytest.param('{"tp_size": 8, "enable-mixed-chunk": true}', _GIVEN, (), id="JSON"),
        pytest.param("tensor-parallel-size: '8'\nenable-mixed-chunk: yes", _GIVEN, (), id="words"),
        pytest.param("tp-size: 8\nenable-mixed-chunk: on\ndevice:\n", _GIVEN, (), id="null"),
        pytest.param("# none yet\n", {}, (), id="nothing"),
        pytest.param("port: 1\nmodel-path: m\n", {}, ("--port", "--model-path"), id="not ours"),
    ],
)
def test_file_is_a_mapping_of_flags(
    text: str, given: dict[str, object], unrelated: tuple[str, ...], tmp_path: Path
) -> None:
    """A YAML or JSON file gives flags by name; `null` is not given, and others are counted."""
    file = tmp_path / "flags"
    file.write_text(text)

    read = ServerFlags.from_file(file)

    assert (read.given(), read.unrelated) == (given, unrelated)


_HOLDS = "it holds a {}, or keys that are no text"
_BRACE = (
    "while parsing a flow node expected the node content, but found '<stream end>' "
    'in "<byte string>", line 1, column 2: { ^'
)
_BYTE = 'unacceptable character #x00ff: invalid start byte in "<byte string>", position 8'


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        pytest.param(b"- fa3\n", _HOLDS.format("list"), id="a list"),
        pytest.param(b"1: fa3\n", _HOLDS.format("dict"), id="a number as key"),
        pytest.param(b"fa3", _HOLDS.format("str"), id="a word"),
        pytest.param(b"{", _BRACE, id="no YAML"),
        pytest.param(b"device: \xff", _BYTE, id="no UTF-8"),
    ],
)
def test_file_that_is_no_mapping_is_refused(content: bytes, cause: str, tmp_path: Path) -> None:
    """A file that holds something else is an error that says what it holds."""
    file = tmp_path / "flags.yaml"
    file.write_bytes(content)

    error = error_of(lambda: ServerFlags.from_file(file))

    assert error == f"flags file {str(file)!r} cannot be read: {cause}. {_EXPECTED}"


@pytest.mark.parametrize("word", ["1", "true", "YES", "on", "0", "False", "no", "OFF"])
def test_environment_gives_a_switch(word: str) -> None:
    """A switch in the environment is one of the usual words, in any case."""
    read = ServerFlags.from_environ({f"{_PREFIX}DISABLE_CUDA_GRAPH": word})

    assert read.given() == {"disable_cuda_graph": word in {"1", "true", "YES", "on"}}


def test_environment_gives_values_as_words() -> None:
    """A value in the environment is read like one on a command line."""
    ours = {f"{_PREFIX}ATTENTION_BACKEND": "fa3", f"{_PREFIX}CONTEXT_LENGTH": "32k"}

    read = ServerFlags.from_environ({**ours, "PATH": "/bin", "BACKEND_CAPS_PLUGINS": "fa3-caps"})

    assert read.given() == {"attention_backend": "fa3", "context_length": 32000}


_LIKE = "{0}{1} is no flag of this engine, and looks like {0}{2}. Write {0}{2}, or leave it out."
_NO_SWITCH = "expected 1, true, yes, on, 0, false, no or off. Correct the value."


@pytest.mark.parametrize(
    ("name", "word", "text"),
    [
        ("PAGE_SIZES", "64", _LIKE.format(_PREFIX, "PAGE_SIZES", "PAGE_SIZE")),
        ("ZZZ", "64", _LIKE.format(_PREFIX, "ZZZ", "TP_SIZE")),
        ("DISABLE_CUDA_GRAPH", "maybe", f"{_PREFIX}DISABLE_CUDA_GRAPH is 'maybe'; {_NO_SWITCH}"),
        (
            "PAGE_SIZE",
            "many",
            "--page-size is 'many'; expected a valid integer. Correct the value.",
        ),
    ],
)
def test_environment_refuses(name: str, word: str, text: str) -> None:
    """A variable with our prefix must be one of our flags, with a value that it can have."""
    assert error_of(lambda: ServerFlags.from_environ({_PREFIX + name: word})) == text


def test_mapping_gives_values_of_their_own_types() -> None:
    """A mapping holds typed values by name, with dashes or underscores, and aliases."""
    values = {"attention-backend": "fa3", "--data-parallel-size": 2, "device": None}

    read = ServerFlags.from_mapping({**values, **_GIVEN})

    assert read.given() == {"attention_backend": "fa3", "dp_size": 2, "device": None, **_GIVEN}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tp_size", "8", "integer"),
        ("tp_size", True, "integer"),
        ("disable_cuda_graph", 1, "boolean"),
        ("disable_cuda_graph", None, "boolean"),
        ("disable_cuda_graph", "true", "boolean"),
        ("attention_backend", 3, "string"),
        ("speculative_algorithm", 3, "string"),
        ("kv_cache_dtype", 8, "string"),
    ],
)
def test_values_of_other_types_are_refused(name: str, value: object, expected: str) -> None:
    """A value of a mapping, or of an engine's live arguments, is never converted."""
    text = f"{option_of(name)} is {value!r}; expected a valid {expected}. Correct the value."

    assert error_of(lambda: ServerFlags.from_mapping({name: value})) == text
    assert error_of(lambda: ServerFlags.from_object(SimpleNamespace(**{name: value}))) == text


def test_object_is_read_by_attribute() -> None:
    """An engine's live arguments are read by SGLang's names; what is missing is not given."""
    args = SimpleNamespace(**_GIVEN, model_path="llama")

    assert ServerFlags.from_object(args).given() == _GIVEN


def test_flags_over_others_keep_what_only_those_say() -> None:
    """Of two sources the nearer counts where both speak, defaults left aside."""
    file = ServerFlags.from_mapping({"page_size": 64, "device": "cuda", "port": 1})

    both = flags("--page-size 16 --host x").over(file)

    assert both.given() == {"page_size": 16, "device": "cuda"}
    assert both.unrelated == ("--port", "--host")


def test_flags_updated_are_validated() -> None:
    """A change is checked like a flag, and leaves the others as they are."""
    read = flags("--page-size 16 --device cuda --host x")

    changed = read.updated({"page_size": 64})
    faults = faults_of(lambda: read.updated({"page_size": 0}))

    assert (changed.page_size, changed.device, changed.unrelated) == (64, "cuda", ("--host",))
    assert faults == [("page_size", "Input should be greater than or equal to 1")]


_BF16 = Facts(kv_cache_dtype="bf16", dtype="torch.half", device="cuda:0")
_AUTO = Facts(kv_cache_dtype="auto", dtype="auto")
_DECODES = "--attention-backend auto --decode-attention-backend mla"
_SPELLED = {"kv_cache_dtype": "bfloat16", "dtype": "float16", "device": "cuda"}


@pytest.mark.parametrize(
    ("line", "facts", "known"),
    [
        ("", Facts(), {"speculative_algorithm": "NONE", "device": None, "page_size": None}),
        ("", Facts(), {"enable_two_batch_overlap": False, "tp_size": 1}),
        ("--speculative-algorithm EAGLE", Facts(), {"speculative_algorithm": "EAGLE"}),
        ("--kv-cache-dtype auto", Facts(), {"kv_cache_dtype": None}),
        ("--kv-cache-dtype fp8_e5m2", Facts(), {"kv_cache_dtype": "fp8_e5m2"}),
        # What facts contradict is not known.
        ("--kv-cache-dtype fp8_e5m2", Facts(kv_cache_dtype="bfloat16"), {"kv_cache_dtype": None}),
        ("--kv-cache-dtype auto --device cuda:1", _BF16, _SPELLED),
        ("--device auto", _AUTO, dict.fromkeys(_SPELLED)),
        ("", Facts(attention_arch=AttentionArch.MLA), {"attention_arch": AttentionArch.MLA}),
        # While decode's backend is to be chosen, a condition on its name is open.
        ("--attention-backend auto", Facts(), {"decode_attention_backend": None}),
        (_DECODES, Facts(), {"decode_attention_backend": "mla"}),
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

    own = Facts(page_size=16, head_size=128)
    said = {"device": "cuda", "context_length": 8192, "kv_cache_dtype": "fp8_e5m2"}
    assert facts == own.model_copy(update=said)


def test_flags_survive_pickling() -> None:
    """Flags cross into another process and are the same there."""
    read = flags("--page-size 16 --host x")

    carried = pickle.loads(pickle.dumps(read))  # noqa: S301 - our own bytes

    assert (carried, carried.unrelated) == (read, ("--host",))
