"""What becomes of a command line: interpreted, beside what Python's own execution gives."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from backend_caps.capability.facts import Facts
from backend_caps.capability.gpu import gpus
from backend_caps.capability.kind import Phase
from backend_caps.engines.model import IS_COMPLETE, Model, model_of
from backend_caps.engines.query import ask, folder_of
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import EngineError, LaunchQuery
from backend_caps.engines.sglang import arguments
from backend_caps.engines.sglang.arguments import plain, read_launch, read_launches, without_model
from backend_caps.engines.sglang.query import SCRIPT, ask_launches, flags_of, launch_of
from backend_caps.engines.sglang.query_backends import features_of
from backend_caps.engines.sglang.read import is_wanted, read_sglang
from backend_caps.engines.source.files import Tree, open_tree
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import library
from backend_caps.engines.source.values import ModuleValue
from backend_caps.engines.start import read_start
from backend_caps.resolution.launch import Launch
from tests.unit.building import use
from tests.unit.engines.source.trees import write_folder
from tests.unit.engines.tables import data

_TEXTS = data("sglang_launch")
_SHARED = ("layers/", "configs/", "utils/")
"""Parts that both shapes of the small engine have."""
_BESIDE = {
    "sglang-9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 9.0\n",
    "transformers.py": (
        "class PretrainedConfig:\n"
        "    def __init__(self, **values):\n"
        "        self.__dict__.update(values)\n"
    ),
}
_CONFIGS: Mapping[str, Mapping[str, object]] = {
    "plain": {"model_type": "plain"},
    "latent": {"model_type": "plain", "kv_lora_rank": 512, "head_dim": 192},
    "linear": {"model_type": "small", "num_layers": 6, "every": 3},
}
_NUM_GPUS = 4


def _files(shape: str) -> dict[str, str | bytes]:
    shared = {
        path: text
        for path, text in _TEXTS["declares"].items()
        if path.removeprefix("sglang/srt/").startswith(_SHARED)
    }
    return {**shared, **_TEXTS[shape], **_BESIDE}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small engine in both shapes, and models, each in a folder."""
    folder = tmp_path_factory.mktemp("launch")
    for shape in ("declares", "assigns"):
        write_folder(folder / shape, _files(shape))
    for name, values in _CONFIGS.items():
        own = {**values, "architectures": ["Small"], IS_COMPLETE: True}
        write_folder(folder, {f"models/{name}/config.json": json.dumps(own)})
    return folder


@pytest.fixture
def importable(place: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Let processes import a shape of the small engine."""
    shape = getattr(request, "param", "declares")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(place / shape)
    yield place / shape
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def _model(place: Path, name: str) -> Model:
    return model_of(str(place.parent / "models" / name))


def _query(lines: Sequence[Sequence[str]], model: Model, num_gpus: int = 1) -> LaunchQuery:
    return LaunchQuery(lines=lines, gpu=gpus()["H100"], num_gpus=num_gpus, model=model)


def _read(place: Path, line: str, gpu: str, model: str) -> Launch:
    index = Index(open_tree("sglang", place, within=is_wanted))
    return read_launch(index, line.split(), gpus()[gpu], _NUM_GPUS, _model(place, model))


def _asked(place: Path, lines: Sequence[tuple[str, str]], gpu: str) -> list[Launch]:
    models = [_model(place, model) for _, model in lines]
    words = [
        [*line.split(), "--model-path", each.name]
        for (line, _), each in zip(lines, models, strict=True)
    ]
    answers = ask(Path(sys.executable), SCRIPT, words, gpus()[gpu], _NUM_GPUS)
    return [launch_of(a, gpus()[gpu], m.name) for a, m in zip(answers, models, strict=True)]


_LINES: Mapping[str, Sequence[tuple[str, str]]] = {
    "declares": (
        ("", "plain"),
        ("--attention-backend fa3 --tp 2", "plain"),
        ("--attention-backend fa3", "latent"),
        ("--attention-backend triton --kv-cache-dtype fp8_e4m3", "linear"),
        ("--attention-backend fa3 --tp 8", "plain"),
        ("--tp 4", "plain"),
        ("--attention-backend fa4", "plain"),
        ("--frobnicate", "plain"),
        ("--attention-back triton", "plain"),
        ("--attention-backend broken", "plain"),
        ("--prefill-attention-backend triton --decode-attention-backend flashinfer", "plain"),
        ("--speculative-algorithm NGRAM --page-size 16", "plain"),
        ("--speculative-algorithm EAGLE --attention-backend triton", "plain"),
        ("--speculative-algorithm EAGLE --attention-backend flashinfer", "plain"),
        (
            "--speculative-algorithm EAGLE --speculative-num-steps 1 --attention-backend triton",
            "plain",
        ),
        ("--speculative-algorithm EAGLE --speculative-draft-attention-backend fa3", "latent"),
        ("--speculative-algorithm DFLASH --attention-backend fa3", "plain"),
    ),
    "assigns": (
        ("", "plain"),
        ("--attention-backend fa3", "plain"),
        ("--attention-backend triton", "linear"),
        ("--prefill-attention-backend triton --attention-backend fa3", "latent"),
        ("--prefill-attention-backend fa3 --attention-backend triton", "latent"),
        ("--speculative-algorithm EAGLE --attention-backend triton", "plain"),
        ("--speculative-algorithm DFLASH --attention-backend triton", "plain"),
    ),
}


@pytest.mark.parametrize("gpu", ["H100", "L40S", "MI300X", "T4"])
@pytest.mark.parametrize("importable", ["declares", "assigns"], indirect=True)
def test_interpreted_launch_is_what_python_gives(importable: Path, gpu: str) -> None:
    """The reader refuses and accepts what the process does, with its values, lines and classes."""
    lines = _LINES[importable.name]

    asked = _asked(importable, lines, gpu)

    for (line, model), one in zip(lines, asked, strict=True):
        other = _read(importable, line, gpu, model)
        assert _compared(other, one.classes) == _compared(one), (line, model)


def _compared(launch: Launch, slots: Iterable[str] | None = None) -> object:
    if slots is not None:
        launch = replace(launch, classes={each: launch.classes.get(each, ()) for each in slots})
    plain: object = json.loads(json.dumps(asdict(launch), default=sorted))
    return plain


def _starts(launch: Launch) -> tuple[bool | None, str]:
    said = launch.refusal or next(iter(launch.unchecked), None)
    return launch.starts, "" if said is None else said.message


def test_attribute_of_the_runner_that_is_not_known_is_not_decided(importable: Path) -> None:
    """The process does not go on with what a stand-in lacks; the reader takes it for unknown."""
    line = "--attention-backend linear_only"

    [asked] = _asked(importable, [(line, "plain")], "H100")

    assert _starts(asked) == (None, "the runner's pages")
    assert _read(importable, line, "H100", "plain").starts is True


def test_package_that_may_be_missing_is_not_checked(importable: Path) -> None:
    """Whether another package is installed on the server is not known."""
    line = "--enable-two-batch-overlap"

    [asked] = _asked(importable, [(line, "plain")], "H100")
    read = _read(importable, line, "H100", "plain")

    words = "deep_ep is not installed"
    assert _starts(asked) == (None, f"ImportError: {words}")
    assert _starts(read) == (None, words)
    assert "find_spec('deep_ep') is None" in read.unchecked[0].unless


_OLDER_CHOICE = """
def _resolve_draft_attention_backend_fallback(*, server_args, algo_label):
    return server_args.attention_backend + algo_label


def build_draft_tp_worker(*, server_args, gpu_id):
    from sglang.srt.managers.tp_worker import TpModelWorker

    own = _resolve_draft_attention_backend_fallback(server_args=server_args, algo_label="")
    return TpModelWorker(server_args=server_args, gpu_id=gpu_id, draft_attention_backend=own)
"""


_CHOSEN = "sglang/srt/speculative/draft_worker_common.py"


def test_only_backend_of_a_draft_is_the_one_that_a_function_chooses(importable: Path) -> None:
    """Releases have one of two functions for it."""
    place = _other(importable, "chosen", {_CHOSEN: _OLDER_CHOICE})
    line = "--speculative-algorithm DFLASH --attention-backend triton"

    [asked] = _asked(place, [(line, "plain")], "H100")
    read = _read(place, line, "H100", "plain")

    assert {*read.classes} == {"prefill", "decode", "draft", "draft_extend", "draft_prefill"}
    assert _compared(read) == _compared(asked)


def test_process_does_not_tell_what_a_drafts_constructor_chooses(importable: Path) -> None:
    """A worker cannot be constructed without weights, so its draft's backend stays open."""
    place = _other(importable, "constructed", {_CHOSEN: ""})
    line = "--speculative-algorithm DFLASH --attention-backend triton"

    [asked] = _asked(place, [(line, "plain")], "H100")

    assert {*asked.classes} == {"prefill", "decode"}


def test_backends_whose_names_are_not_asked_for_are_constructed(importable: Path) -> None:
    """Before a runner had its backends' names, what constructs them found these itself."""
    text = _TEXTS["declares"][_SETUP].replace("def resolve_att", "def _resolve_att")
    own = "\n    names = _resolve_attention_backend_strs(model_runner=model_runner)"
    for phase in ("prefill", "decode"):
        own += f"\n    model_runner.{phase}_attention_backend_str = names.{phase}"
    place = _other(importable, "unnamed", {_SETUP: text.replace("    init_cublas()", own[1:])})
    line = "--attention-backend triton"

    [asked] = _asked(place, [(line, "plain")], "H100")
    read = _read(place, line, "H100", "plain")

    assert read.starts
    assert _compared(read) == _compared(asked)


@pytest.mark.parametrize("importable", ["assigns"], indirect=True)
def test_runner_that_cannot_be_imported_is_not_decided(importable: Path) -> None:
    """An error of what is not here is no refusal."""
    runner = "sglang/srt/model_executor/model_runner.py"
    place = _other(importable, "partial", {runner: "raise RuntimeError('no driver')"})

    [asked] = _asked(place, [("", "plain")], "H100")

    words = "sglang.srt.model_executor.model_runner cannot be imported: RuntimeError: no driver"
    assert _starts(asked) == (None, words)


def _other(importable: Path, name: str, files: Mapping[str, str]) -> Path:
    """Write a shape with other files, and let processes import it."""
    place = importable.parent / name
    write_folder(place, {**_files(importable.name), **files})
    os.environ["PYTHONPATH"] = str(place)
    return place


def test_overlap_of_two_batches_is_wrapped(importable: Path) -> None:
    """A wrapper's own factory runs, and its parts are listed once, inside of it."""
    place = _other(importable, "overlapped", {"sglang/srt/server_args.py": _without_check()})
    line = "--enable-two-batch-overlap --attention-backend triton"

    [asked] = _asked(place, [(line, "linear")], "H100")
    read = _read(place, line, "H100", "linear")

    names = [path.rpartition(".")[2] for path in read.classes["decode"]]
    assert names == ["TboAttnBackend", "LinearWrapperBackend", "TritonBackend", "LinearBackend"]
    assert {path.rpartition(".")[2] for path in read.wrappers} == {*names[:2]}
    assert (asked.classes, asked.wrappers) == (read.classes, read.wrappers)


def _without_check() -> str:
    text: str = _TEXTS["declares"]["sglang/srt/server_args.py"]
    return text.replace('importlib.util.find_spec("deep_ep") is None', "False")


def test_configuration_that_may_lack_values_is_not_checked(place: Path, tmp_path: Path) -> None:
    """A name that a config.json lacks may have a default in transformers' own class."""
    config = {"model_type": "plain", "architectures": ["Small"]}
    write_folder(tmp_path, {"config.json": json.dumps(config)})
    index = Index(open_tree("sglang", place / "declares", within=is_wanted))

    launch = read_launch(
        index, ["--attention-backend", "fa3"], gpus()["A100"], 1, model_of(str(tmp_path))
    )

    assert _starts(launch) == (None, "fa3 is for SM 9")
    assert "use_mla_backend" in launch.unchecked[0].unless


def test_draft_of_a_stored_configuration(importable: Path) -> None:
    """A command line names stored configurations, of the draft too, and they stay names."""
    line = (
        "--speculative-algorithm EAGLE --speculative-draft-attention-backend fa3 "
        "--speculative-draft-model-path=eagle3-llama-3.1-8b"
    )
    model = model_of("llama-3.1-8b")

    asked = ask_launches(Path(sys.executable), _query([line.split()], model, 8))[0]

    index = Index(open_tree("sglang", importable, within=is_wanted))
    read = read_launch(index, line.split(), gpus()["H100"], 8, model)
    assert _compared(read) == _compared(asked)
    assert asked.values["model_path"] == "llama-3.1-8b"
    assert asked.values["speculative_draft_model_path"] == "eagle3-llama-3.1-8b"
    assert asked.classes["draft_extend"] == (
        "sglang.srt.layers.attention.plain_backends.FaBackend",
    )


def test_environment_with_the_engine_is_read_and_asked(importable: Path) -> None:
    """The Python of an environment gives both: the source, and the answers."""
    python = Path(sys.executable)

    reading = read_engine("sglang", python=python)

    assert folder_of(python, "sglang") == importable
    assert (reading.version, reading.launches is None) == ("9.0", False)
    assert reading.launches is not None
    [launch] = reading.launches(_query([[]], _model(importable, "plain")))
    assert (launch.engine, launch.flags["attention_backend"]) == ("sglang-9.0", "fa3")


def test_launch_is_followed_while_the_engine_is_read(importable: Path) -> None:
    """A query that is known beforehand has the answer that it has afterwards, read and asked."""
    model = _model(importable, "plain")
    query, other = _query([[]], model), _query([["--tp", "4"]], model)
    read = read_engine("sglang", importable)
    asked = read_engine("sglang", python=Path(sys.executable))
    for after, before in (
        (read, read_engine("sglang", importable, query=query)),
        (asked, read_engine("sglang", python=Path(sys.executable), query=query)),
    ):
        assert after.launches is not None
        assert before.launches is not None
        for each in (query, other, query):
            assert before.launches(each) == after.launches(each)
        assert read_start(query, source=importable).launch == after.launches(query)[0]


def test_engine_that_cannot_be_imported_is_not_decided(tmp_path: Path, place: Path) -> None:
    """An engine that is not whole is an answer to every command line."""
    write_folder(tmp_path, {"sglang/__init__.py": "import a_part_that_is_missing\n", **_BESIDE})
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        launches = _asked(place / "declares", [("", "plain"), ("--tp 2", "plain")], "H100")
    finally:
        del os.environ["PYTHONPATH"]

    words = "No module named 'a_part_that_is_missing'"
    assert [words in _starts(each)[1] for each in launches] == [True, True]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param("exit 3", "ended with status 3 and 0 of 1 answers", id="ends early"),
        pytest.param(None, "cannot be asked", id="not there"),
    ],
)
def test_python_without_an_answer_is_an_error(
    tmp_path: Path, place: Path, script: str | None, words: str
) -> None:
    """A Python that gives no answer is named, with what it said."""
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)

    with pytest.raises(EngineError, match=words):
        ask_launches(python, _query([[]], _model(place / "declares", "plain")))


def test_python_without_the_engine_is_an_error(tmp_path: Path) -> None:
    """The Python that is named has to have SGLang."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module >&2; exit 1\n")
    python.chmod(0o755)

    with pytest.raises(EngineError, match="finds no sglang"):
        folder_of(python, "sglang")


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("python -m sglang.launch_server --model-path m --tp 2", "--tp 2"),
        ("--tp 2 --model=m", "--tp 2"),
        ("--model", ""),
    ],
)
def test_model_of_the_command_line_is_replaced(line: str, kept: str) -> None:
    """A launch's model is given beside the command line, whose own is left out."""
    assert " ".join(without_model(line.split())) == kept


def test_flags_are_those_of_final_values_that_are_known() -> None:
    """Values that are not known are left out; graphs are off where each phase has none."""
    disabled = {"backend": "disabled"}

    assert flags_of({"page_size": {"unknown": "why"}, "attention_backend": "fa3"}) == {
        "attention_backend": "fa3"
    }
    assert flags_of({"cuda_graph_config": {"decode": disabled}, "attn_dp_size": 2}) == {
        "disable_cuda_graph": True,
        "enable_dp_attention": True,
    }
    assert flags_of({"cuda_graph_config": {"decode": [{"unknown": "why"}]}}) == {}


@pytest.mark.parametrize("shape", ["declares", "assigns"])
def test_command_lines_are_followed_side_by_side(place: Path, shape: str) -> None:
    """Several command lines have the answers that each has alone, in their order."""
    index = Index(open_tree("sglang", place / shape, within=is_wanted))
    model = model_of(str(place / "models" / "plain"))
    lines = [["--attention-backend", name] for name in ("triton", "fa4", "fa3")]

    found = read_launches(index, _query(lines, model))

    assert found == [read_launch(index, line, gpus()["H100"], 1, model) for line in lines]
    assert [each.starts for each in found] == [True, False, True]
    assert read_launches(index, _query(lines[:1], model)) == found[:1]


def _launch_of(place: Path, files: Mapping[str, str], line: str = "") -> Launch:
    whole = {**_files("declares"), **files}
    texts = {path: str(text).encode() for path, text in whole.items() if is_wanted(path)}
    tree = Tree(package="sglang", version="9.0", source="here", files=texts)
    own = model_of(str(place / "models" / "plain"))
    return read_launch(Index(tree), line.split(), gpus()["H100"], 1, own)


_ARGS = "sglang/srt/server_args.py"
_SETUP = "sglang/srt/model_executor/model_runner_components/attention_backend_setup.py"


@pytest.mark.parametrize(
    ("path", "old", "new", "words"),
    [
        pytest.param(_ARGS, "def prepare", "def other", "makes no arguments", id="no parser"),
        pytest.param(
            _ARGS,
            "    parser = argparse",
            "    while True: pass\n    parser = argparse",
            "a loop of more than",
            id="a loop",
        ),
        pytest.param(
            _SETUP,
            "def build_attention_backends",
            "def build_backends",
            "has no build_attention_backends",
            id="another way to construct",
        ),
    ],
)
def test_source_of_another_shape_is_not_checked(
    place: Path, path: str, old: str, new: str, words: str
) -> None:
    """Where the functions that are followed are not there, nothing is said for certain."""
    text = _TEXTS["declares"][path]
    assert old in text

    launch = _launch_of(place, {path: text.replace(old, new)})

    assert launch.starts is None
    assert words in launch.unchecked[0].message
    assert launch.unchecked[0].at.startswith(("sglang/srt/server_args.py:", "sglang.srt."))


def test_builder_that_resolves_names_itself_is_followed(place: Path) -> None:
    """Older releases have no function for the names of a runner's backends."""
    text = _TEXTS["declares"][_SETUP]
    own = "    names = names_of(model_runner=model_runner)\n"
    for phase in ("prefill", "decode"):
        own += f"    model_runner.{phase}_attention_backend_str = names.{phase}\n"
    older = text.replace("resolve_attention_backend_strs", "names_of")
    older = older.replace("    init_cublas()\n", f"    init_cublas()\n{own}")

    launch = _launch_of(place, {_SETUP: older}, "--attention-backend triton")

    assert launch.starts is True
    assert launch.classes == _launch_of(place, {}, "--attention-backend triton").classes


_CHECKS = "    def check_server_args(self):\n"


def _checking(place: Path, *statements: str) -> Launch:
    """Follow a launch whose check of the arguments begins with some statements."""
    text = _TEXTS["declares"][_ARGS]
    assert _CHECKS in text
    own = "".join(f"        {each}\n" for each in statements)
    return _launch_of(place, {_ARGS: "import logging\n" + text.replace(_CHECKS, _CHECKS + own)})


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        pytest.param('"100% of it"', ["100% of it"], id="a text alone"),
        pytest.param('"%s becomes %d", "page_size", 64', ["page_size becomes 64"], id="values"),
        pytest.param('"the place is %s", torch.somewhere()', [], id="a value that is not known"),
        pytest.param('"no place for it", 64', [], id="values that do not fit"),
    ],
)
def test_warning_whose_text_is_known_is_kept(place: Path, given: str, messages: list[str]) -> None:
    """A server warns and goes on, also where the warning cannot be written."""
    launch = _checking(place, f"logging.getLogger(__name__).warning({given})")

    assert launch.starts is True
    assert [each.message for each in launch.warnings] == messages
    assert all(each.at.startswith(f"{_ARGS}:") for each in launch.warnings)


def test_warning_under_a_condition_that_is_not_known_is_left_out(place: Path) -> None:
    """A server may not warn at all, so it is no reason for what it does."""
    warned = _checking(
        place, "import torch", "if torch.somewhere():", '    logging.getLogger("").warning("no")'
    )
    certain = _checking(place, "if True:", '    logging.getLogger("").warning("yes")')

    assert (warned.warnings, [each.message for each in certain.warnings]) == ((), ["yes"])


def test_result_of_what_no_argument_has_is_the_default(place: Path) -> None:
    """An argument that is None in the end has its fallback, and what is none the default."""
    launch = _checking(
        place,
        "from sglang.srt.arg_groups.overrides import resolution_result",
        'declare_resolution(self, "late", kv_cache_dtype=None, dtype=None)',
        'asked = [resolution_result(self, each) for each in ("kv_cache_dtype", "dtype", "absent")]',
        'given = [resolution_result(self, "absent", 3)]',
        'given += [resolution_result(self, "absent", default=4)]',
        'declare_resolution(self, "asked", sizes=[*asked, *given])',
    )

    assert launch.values["sizes"] == ["auto", None, None, 3, 4]


def test_value_that_was_given_counts_until_a_rule_decides(place: Path) -> None:
    """Releases may keep what the command line gave beside the object's own attributes."""
    launch = _checking(
        place,
        "self._raw_input = {'sizes': (3,), 'tp_size': 5}",
        "declare_resolution(self, 'rule', tp_size=2)",
    )

    assert (launch.values["sizes"], launch.values["tp_size"]) == ([3], 2)


@pytest.mark.parametrize(
    ("between", "line"),
    [
        pytest.param("pass", 2, id="it was left last"),
        pytest.param("other()", 6, id="another function was left since"),
    ],
)
def test_line_of_a_rewrite_is_that_which_returned_it(place: Path, between: str, line: int) -> None:
    """What a function decides is declared by its name elsewhere; its own return counts."""
    launch = _checking(
        place,
        "def rule():",
        "    return {'tp_size': 2}",
        "def other(): return None",
        "found = rule()",
        between,
        "declare_resolution(self, 'rule', **found)",
    )

    [own] = [each for each in launch.rewrites if each.name == "tp_size"]
    first = ("import logging\n" + _TEXTS["declares"][_ARGS]).split(_CHECKS)[0].count("\n")
    assert (own.after, own.at) == (2, f"{_ARGS}:{first + 1 + line}")


_PAIR = "sglang/srt/layers/attention/hybrid_attn_backend.py"


@pytest.mark.parametrize(
    ("needs", "joined"),
    [
        pytest.param("decode_backend.needs_cpu_seq_lens", set(), id="of decode"),
        pytest.param(
            "prefill_backend.needs_cpu_seq_lens or decode_backend.needs_cpu_seq_lens",
            {"prefill", "decode"},
            id="of both",
        ),
        pytest.param("None[0]", {"prefill", "decode"}, id="not followed"),
    ],
)
def test_pair_that_asks_for_prefill_is_found(place: Path, needs: str, joined: set[str]) -> None:
    """A pair's own constructor says whether lengths count that prefill alone needs."""
    text = _TEXTS["declares"][_PAIR].replace("decode_backend.needs_cpu_seq_lens", needs)
    line = "--prefill-attention-backend triton --decode-attention-backend flashinfer"

    launch = _launch_of(place, {_PAIR: text}, line)

    assert launch.starts is True
    assert launch.joined == joined


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("if model_runner.pool:\n            pass", id="a test"),
        pytest.param("self.is_first = model_runner.pool == 1", id="a comparison"),
        pytest.param("super().__init__(model_runner)", id="another class"),
    ],
)
def test_process_counts_prefill_where_a_pair_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """What the process has no value for may be what makes a pair ask for prefill."""
    before = "        self.needs_cpu_seq_lens"
    text = _TEXTS["declares"][_PAIR].replace(before, f"        {statement}\n{before}")
    write_folder(tmp_path / "declares", {**_files("declares"), _PAIR: text})
    own = {**_CONFIGS["plain"], "architectures": ["Small"], IS_COMPLETE: True}
    write_folder(tmp_path, {"models/plain/config.json": json.dumps(own)})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "declares"))
    line = "--prefill-attention-backend triton --decode-attention-backend flashinfer"

    [asked] = _asked(tmp_path / "declares", [(line, "plain")], "H100")

    assert asked.starts is True
    assert asked.joined == {"prefill", "decode"}


_COMMON = "sglang/srt/speculative/draft_worker_common.py"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("return TpModelWorker(", "return dict(", id="no runner is made"),
        pytest.param("def build_draft_tp_worker", "def build", id="no worker is known"),
    ],
)
def test_draft_whose_backend_is_not_found_is_not_checked(place: Path, old: str, new: str) -> None:
    """Which backend a worker gives to its draft's runner is followed, or not known."""
    text = _TEXTS["declares"][_COMMON]
    assert old in text

    launch = _launch_of(place, {_COMMON: text.replace(old, new)}, "--speculative-algorithm DFLASH")

    assert launch.starts is None
    assert launch.unchecked[0].message == "its worker makes no runner for its draft"


def test_fault_of_the_interpreter_is_no_refusal(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of our own code says nothing of the engine."""

    def fail(*_: object) -> None:
        raise KeyError("own")

    monkeypatch.setattr(arguments, "facts_of", fail)

    launch = _launch_of(place, {})

    words = "the interpreter fails (KeyError: 'own')"
    assert (launch.starts, launch.unchecked[0].message) == (None, words)
    assert launch.unchecked[0].at == "sglang.srt.server_args"


def test_cache_of_a_dtype_that_is_not_known_is_followed(place: Path) -> None:
    """A value that the environment decides stays unknown to the end, and is listed so."""
    text = _TEXTS["declares"][_ARGS].replace(
        'parser.add_argument("--kv-cache-dtype", default="auto")',
        'parser.add_argument("--kv-cache-dtype", default=torch.somewhere())',
    )

    launch = _launch_of(place, {_ARGS: text})

    assert launch.starts is True
    assert launch.values["kv_cache_dtype"] == {"unknown": "torch.somewhere()"}


def test_part_of_a_configuration_is_one_itself(place: Path) -> None:
    """A class of a configuration that the program constructs has what it is given."""
    path = "sglang/srt/configs/model_config.py"
    text = _TEXTS["declares"][path].replace(
        "        self.context_len = 4096\n",
        "        from sglang.srt.configs.small import BareConfig, SmallConfig\n"
        "        part = SmallConfig(num_layers=8, every=4)\n"
        "        bare = BareConfig(width=3)\n"
        "        self.context_len = 1024 * len(part.full_attention_layer_ids) * bare.width\n",
    )

    launch = _launch_of(place, {path: text})

    assert launch.facts["context_length"] == 6144


def test_values_are_written_as_json_has_them(place: Path) -> None:
    """Members of enumerations are their values, and classes their paths."""
    run = Interpreter(Index(open_tree("sglang", place / "declares")), library({}))
    config = run.import_module("sglang.srt.configs.model_config")
    assert isinstance(config, ModuleValue)

    assert plain(run.item(config.names["AttentionArch"], "MLA")) == 1
    assert plain([config.names["AttentionArch"]]) == [
        "sglang.srt.configs.model_config.AttentionArch"
    ]


@pytest.mark.usefixtures("importable")
def test_process_that_dies_has_its_status(place: Path) -> None:
    """A command line that ends the process is not decided, and the next one is answered."""
    lines = [("--page-size 13", "plain"), ("", "plain")]

    died, other = _asked(place / "declares", lines, "H100")

    assert (died.starts, other.starts) == (None, True)
    assert died.unchecked[0].message.startswith("the process ended with status")


def test_fault_that_a_check_found_is_a_problem_of_the_plan() -> None:
    """A class that is known to fail in a phase is named, where it is used there."""
    files = {
        "sglang/srt/layers/attention/base_attn_backend.py": b"class AttentionBackend: pass\n",
        "sglang/srt/layers/attention/torch_native_backend.py": (
            b"from sglang.srt.layers.attention.base_attn_backend import AttentionBackend\n"
            b"class TorchNativeAttnBackend(AttentionBackend): pass\n"
        ),
    }
    tree = Tree(package="sglang", version="0.5.23", source="here", files=files)
    reading = read_sglang(tree)
    used = use("TorchNativeAttnBackend")

    [problem] = reading.known_faults([used, replace(used, phase=Phase.VERIFY)], Facts())

    assert problem.code == "engine-known-fault"
    assert "TorchNativeAttnBackend of sglang 0.5.23 fails in verify" in problem.message
    assert read_sglang(replace(tree, version="0.5.13")).faults == ()


def test_class_for_other_hardware_is_a_problem_of_the_plan() -> None:
    """The line that imports what the machine lacks is named; on its own hardware nothing is."""
    path = "sglang/srt/hardware_backend/npu/attention/ascend_backend.py"
    files = {
        "sglang/srt/layers/attention/base_attn_backend.py": b"class AttentionBackend: pass\n",
        path: (
            b"import torch_npu\n"
            b"from sglang.srt.layers.attention.base_attn_backend import AttentionBackend\n"
            b"class AscendAttnBackend(AttentionBackend): pass\n"
        ),
    }
    reading = read_sglang(Tree(package="sglang", version="0.5.23", source="here", files=files))
    used = [use("AscendAttnBackend")]

    [problem] = reading.known_faults(used, Facts(device="cuda", rocm=True))

    assert problem.code == "engine-other-hardware"
    assert problem.message == (
        "AscendAttnBackend of sglang 0.5.23 is for npu, by what it imports at "
        f"{path}:1: import torch_npu; here it is rocm."
    )
    assert [*reading.known_faults(used, Facts(device="npu"))] == []
    assert [*reading.known_faults(used, Facts())] == []


def test_features_of_model_and_server_are_facts(place: Path) -> None:
    """Windows and sinks of the model's configuration are facts, as far as they are known."""
    path = "sglang/srt/configs/model_config.py"
    text = _TEXTS["declares"][path].replace(
        "        self.context_len = 4096\n",
        "        self.context_len = 4096\n"
        "        self.sliding_window_size = 128\n"
        "        self.has_attention_sinks = torch.somewhere()\n",
    )

    facts = _launch_of(place, {path: text}).facts

    assert facts["sliding_window"] is True
    assert "attention_sinks" not in facts


_SINKS_ALONE = {"attention_sinks": True, "decode_context_parallel": False}
_SHARED_PROMPTS = {"prefill_context_parallel": True}


@pytest.mark.parametrize(
    ("model", "values", "features"),
    [
        pytest.param({}, {}, {}, id="nothing is known"),
        pytest.param({"sliding_window_size": None}, {}, {"sliding_window": False}, id="no window"),
        pytest.param(
            {"has_attention_sinks": True}, {"dcp_size": 1}, _SINKS_ALONE, id="sinks, one rank"
        ),
        pytest.param(
            {}, {"attn_cp_size": 2, "dcp_size": {"unknown": "why"}}, _SHARED_PROMPTS, id="two ranks"
        ),
    ],
)
def test_features_are_what_is_known(
    model: dict[str, object], values: dict[str, object], features: dict[str, bool]
) -> None:
    """A feature is listed where the configuration and the arguments decide it."""
    assert features_of(model, values) == features
