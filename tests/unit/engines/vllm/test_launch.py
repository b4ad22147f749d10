"""What becomes of a command line of vLLM, asked and read, on a small engine in its shape."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from backend_caps.capability.gpu import gpus
from backend_caps.engines.command_line import named_model
from backend_caps.engines.model import model_of
from backend_caps.engines.reading import LaunchQuery
from backend_caps.engines.source.files import open_tree
from backend_caps.engines.source.index import Index
from backend_caps.engines.vllm.arguments import read_launches
from backend_caps.engines.vllm.query import ask_launches, facts_of
from backend_caps.resolution.launch import CacheGroup, GraphMode, Launch, LayerChoice, Rewrite
from tests.unit.engines.source.trees import write_folder
from tests.unit.engines.vllm.building import write_importable


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small engine, and models in folders."""
    return write_importable(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(autouse=True)
def _importable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes import the small engine."""
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))


def _ask(query: LaunchQuery, _engine: Path) -> Sequence[Launch]:
    return ask_launches(Path(sys.executable), query)


def _read(query: LaunchQuery, engine: Path) -> Sequence[Launch]:
    return read_launches(Index(open_tree("vllm", engine)), query)


_BF16 = "bfloat16"
_CLASSES = "vllm/v1/attention/backends/classes.py"
_ARGUMENTS = "vllm/engine/arg_utils.py"
_Follow = Callable[[LaunchQuery, Path], Sequence[Launch]]
_Of = Callable[..., Sequence[Launch]]


def _launches(
    follow: _Follow, place: Path, model: str, *lines: str, gpu: str = "H100"
) -> Sequence[Launch]:
    query = LaunchQuery(
        lines=[line.split() for line in lines],
        gpu=gpus()[gpu],
        num_gpus=2,
        model=model_of(str(place / model)),
    )
    return follow(query, place / "engine")


@pytest.fixture(params=[pytest.param(_ask, id="asked"), pytest.param(_read, id="read")])
def launches(request: pytest.FixtureRequest, place: Path) -> _Of:
    """What becomes of command lines of a model: the engine is asked, or its source is read."""
    return partial(_launches, request.param, place)


@pytest.fixture
def asked(place: Path) -> _Of:
    """What the engine says that is asked."""
    return partial(_launches, _ask, place)


def test_layers_have_their_backends_and_leave_a_graph_mode(launches: _Of) -> None:
    """Each kind of layer has its own backend; the weakest of them lowers the mode of graphs."""
    plain, full = launches("windows", "", "vllm serve other --cudagraph-mode FULL --model other")

    found = [(g.num_layers, g.role, g.backend, g.graph_support, g.cache) for g in plain.layers]
    assert found == [
        (1, "target", "FULL", "ALWAYS", "FullSpec"),
        (1, "target", "WINDOW", "UNIFORM_BATCH", "FullSpec"),
        (1, "target", "FULL", None, None),
    ]
    assert plain.layers[1].path == "vllm.v1.attention.backends.classes.WindowBackend"
    assert plain.layers[1].sizes == {"block_size": 16, "head_size": 64, "sliding_window": 128}
    assert plain.graphs is not None
    assert plain.graphs.words == []
    assert full.graphs == GraphMode(
        asked="FULL",
        mode="FULL_AND_PIECEWISE",
        support="UNIFORM_BATCH",
        by="WindowBackend",
        words=["WindowBackend supports UNIFORM_BATCH, not FULL"],
    )


def test_backends_have_the_reasons_against_them(launches: _Of) -> None:
    """They come by the platform's own priority; a missing package is a reason of its own."""
    (launch,) = launches("windows", "")

    assert [*launch.choices[1].against] == ["MISSING", "FULL", "WINDOW"]
    assert launch.choices[1] == LayerChoice(
        asked={"head_size": 64, "has_sliding_window": True, "has_sink": False},
        against={
            "MISSING": ["ImportError: no such package"],
            "FULL": ["sliding window not supported"],
            "WINDOW": [],
        },
    )


def test_layers_that_ask_for_no_kind_have_no_reasons(launches: _Of) -> None:
    """As in releases that ask by arguments alone; they take what the platform gives them."""
    (launch,) = launches("unasked", "")

    assert [(group.backend, group.facts) for group in launch.layers] == [("FULL", {})]
    assert launch.choices == ()


def test_layers_have_what_each_of_them_asks(launches: _Of) -> None:
    """Those of a target and of a draft that ask the same each have it, also when it is kept."""
    sinks, windows = launches("sinks", "--method eagle3", "")[0], launches("windows", "")[0]

    own = {"head_size": 64, "sliding_window": False}
    assert [(each.role, each.facts) for each in sinks.layers] == [
        (role, {**own, "attention_sinks": has}) for role in ("target", "draft") for has in _EITHER
    ]
    assert [each.facts["sliding_window"] for each in windows.layers] == [False, True, False]


_EITHER = (True, False)


def test_layers_have_the_cap_that_their_implementation_keeps(launches: _Of) -> None:
    """No layer asks for it; where the implementation keeps none, it is no fact."""
    (launch,) = launches("caps", "")

    assert [each.facts.get("logit_soft_cap") for each in launch.layers] == [True, False, None]


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"head_size": {"unknown": "x"}, "use_rswa": True}, {}, id="not known"),
        pytest.param(
            {"dtype": "bfloat16", "kv_cache_dtype": "auto", "attn_type": "ENCODER_DECODER"},
            {"dtype": _BF16, "kv_cache_dtype": _BF16, "attention_type": "encoder_decoder"},
            id="a cache of the model's dtype",
        ),
        pytest.param({"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}, id="fp8"),
        pytest.param({"kv_cache_dtype": None, "attn_type": "new"}, {}, id="a type to come"),
        pytest.param(
            {"use_mla": True, "use_sparse": True, "use_dcp": True},
            {"attention_arch": "sparse", "decode_context_parallel": True},
            id="sparse",
        ),
        pytest.param({"use_mla": True}, {}, id="half of an architecture"),
    ],
)
def test_questions_of_layers_become_facts(
    asked: Mapping[str, object], facts: Mapping[str, object]
) -> None:
    """A release's names that stand for none of ours are left out."""
    assert facts_of(asked) == facts


def _group(num_layers: int, size: int, kernel_size: int, *backends: str) -> CacheGroup:
    return CacheGroup(
        cache="FullSpec",
        num_layers=num_layers,
        block_size=size,
        kernel_block_size=kernel_size,
        backends=[*backends],
    )


def test_layers_that_keep_alike_share_blocks(launches: _Of) -> None:
    """A layer without a cache is in no group, and one that uses another's in that one's alone."""
    (windows,) = launches("windows", "")
    (shares,) = launches("shares", "")

    assert windows.caches == (_group(1, 16, 16, "FULL"), _group(1, 16, 16, "WINDOW"))
    assert shares.caches == (_group(1, 16, 16, "FULL"),)


def test_group_of_several_backends_has_kernel_blocks_that_all_of_them_take(launches: _Of) -> None:
    """They part the blocks that the engine hands out."""
    (launch,) = launches("uniform", "")

    assert launch.caches == (_group(3, 16, 16, "FULL", "WINDOW"),)
    assert launch.values["cache_config.kv_cache_layout"] == "HND"


_FOLLOWED = pytest.mark.parametrize(
    "follow", [pytest.param(_ask, id="asked"), pytest.param(_read, id="read")]
)


@_FOLLOWED
def test_block_size_is_settled_by_the_backends(
    follow: _Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers, their groups and the layout have it; so have the kernels where they can."""
    place = _changed_engine(
        tmp_path, _CLASSES, ("preferred_block_size = 16", "preferred_block_size = 64")
    )
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))

    (launch,) = _launches(follow, place, "windows", "")

    assert {own.sizes["block_size"] for own in launch.layers if own.cache} == {64}
    assert launch.caches == (_group(1, 64, 64, "FULL"), _group(1, 64, 32, "WINDOW"))
    assert launch.values["cache_config.block_size"] == 64
    assert launch.values["cache_config.kv_cache_layout"] == "NHD"
    [settled] = [each for each in launch.rewrites if each.after == 64]
    assert settled.at.startswith("vllm/platforms/cuda.py:")


@_FOLLOWED
def test_parser_that_cannot_be_made_refuses_each_line(
    follow: _Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines share a parser where there is one."""
    words = "def add_cli_args(parser):"
    refuses = f"{words}\n        raise ValueError('no options')"
    place = _changed_engine(tmp_path, _ARGUMENTS, (words, refuses))
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))

    found = _launches(follow, place, "plain", "", "--cudagraph-mode FULL")

    assert [None if own.refusal is None else own.refusal.message for own in found] == [
        "no options"
    ] * 2


_AT_IMPORT = """import os

from vllm import config

_now = config.get_current_vllm_config()
SIZE = 64 if _now and _now.compilation_config.cudagraph_mode.name == "FULL" else 16
FROM_ENVIRONMENT = int(os.environ.get("VLLM_SIZE", 16))
"""
_PLATFORM = "vllm/platforms/cuda.py"
_GIVES_SIZE = """        import os
        from vllm import config

        if config.get_current_vllm_config().compilation_config.cudagraph_mode.name == "FULL":
            os.environ["VLLM_SIZE"] = "64"
        assert num_heads == 4"""


@_FOLLOWED
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {_CLASSES: [("class FullBackend", f"{_AT_IMPORT}\n\nclass FullBackend")]}, id="itself"
        ),
        pytest.param(
            {_CLASSES: [("class FullBackend", "from vllm.sizes import SIZE\n\nclass FullBackend")]},
            id="of a module that it imports",
        ),
        pytest.param(
            {
                _PLATFORM: [("        assert num_heads == 4", "        import vllm.sizes")],
                _CLASSES: [
                    ("class FullBackend", "from vllm.sizes import SIZE\n\nclass FullBackend")
                ],
            },
            id="of a module that is imported before it",
        ),
        pytest.param(
            {
                _PLATFORM: [("        assert num_heads == 4", _GIVES_SIZE)],
                _CLASSES: [
                    ("class FullBackend", f"{_AT_IMPORT}\n\nclass FullBackend"),
                    ("= SIZE", "= FROM_ENVIRONMENT"),
                ],
            },
            id="of an environment that the line changes",
        ),
    ],
)
def test_value_of_a_module_is_that_of_the_line_which_imports_it(
    follow: _Follow,
    changes: Mapping[str, Sequence[tuple[str, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As FlashAttention's support of graphs is; a line before it has another one."""
    size = ("preferred_block_size = 16", "preferred_block_size = SIZE")
    place = _changed_engine(tmp_path, _CLASSES, size, *changes[_CLASSES])
    _change(place, _PLATFORM, *changes.get(_PLATFORM, ()))
    (place / "engine/vllm/sizes.py").write_text(_AT_IMPORT, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))

    found = _launches(follow, place, "plain", "", "--cudagraph-mode FULL", "")

    assert [each.caches[0].block_size for each in found] == [16, 64, 16]


@_FOLLOWED
def test_block_size_that_no_kernel_takes_is_vllms_refusal(
    follow: _Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner finds it once the model is built."""
    place = _changed_engine(tmp_path, _CLASSES, ("(16, 32)", "(24, 48)"))
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))

    (launch,) = _launches(follow, place, "windows", "")

    assert launch.refusal is not None
    assert launch.refusal.message == "No common block size for 16"
    assert launch.refusal.at.startswith("vllm/v1/worker/utils.py:")


@_FOLLOWED
def test_kernel_blocks_of_an_older_release_are_its_runners(
    follow: _Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does its platform settle the block size, or each line configure its logging."""
    place = _changed_engine(
        tmp_path, "vllm/v1/worker/utils.py", ("def prepare_kernel", "def prepare_other")
    )
    _change(place, _PLATFORM, ("update_block", "update_other"))
    _change(place, "vllm/logger.py", ("_if_needed", ""))
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))

    (launch,) = _launches(follow, place, "windows", "")

    assert launch.caches == (_group(1, 16, 16, "FULL"), _group(1, 16, 16, "WINDOW"))


def test_values_are_final_and_name_the_line_that_changed_them(launches: _Of) -> None:
    """A dtype is written without its module, a mode by its name."""
    (launch,) = launches("plain", "")

    assert (launch.engine, launch.machine, launch.starts) == ("vllm-9.0", "H100", True)
    assert launch.values["model_config.dtype"] == "bfloat16"
    assert launch.values["compilation_config.cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert launch.values["use_v2_model_runner"] is True
    assert launch.facts["head_size"] == 64
    first = launch.rewrites[0]
    assert first == Rewrite(name="cache_config.block_size", before=None, after=16, at=first.at)
    assert first.at.startswith("vllm/engine/arg_utils.py:")
    assert launch.graphs is not None
    assert (launch.graphs.support, launch.graphs.by) == ("ALWAYS", None)


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
@pytest.mark.parametrize(
    ("runner", "backend"), [("second", "WINDOW"), ("first", "FULL"), ("", "FULL")]
)
def test_draft_model_has_layers_of_its_own(
    launches: _Of, place: Path, method: str, runner: str, backend: str
) -> None:
    """The runner's own class loads them, and may leave out the backend that is stated."""
    line = f"--attention-backend WINDOW --runner={runner} --method {method}"
    (launch,) = launches("plain", f"{line} --draft {place / 'plain'}")

    roles = [(group.role, group.backend, group.num_layers) for group in launch.layers]
    assert roles == [("target", "WINDOW", 3), ("draft", backend, 3)]
    assert launch.values["use_v2_model_runner"] is (runner == "second")


def test_variables_before_a_command_line_are_its_environment(launches: _Of) -> None:
    """Each line has its own."""
    lines = ("--runner=", "VLLM_USE_V2_MODEL_RUNNER=1 OTHER=a=b vllm serve other --runner=")

    first, second = launches("plain", *lines)

    assert first.values["use_v2_model_runner"] is False
    assert second.values["use_v2_model_runner"] is True


def test_file_of_options_is_read(launches: _Of, tmp_path: Path) -> None:
    """As the engine's parser reads it; what stands on the command line wins."""
    file = tmp_path / "own.yaml"
    file.write_text("model: other\nattention-backend: WINDOW\ncudagraph-mode: FULL\n")

    (launch,) = launches("plain", f"vllm serve --config {file} --cudagraph-mode PIECEWISE")

    assert {group.backend for group in launch.layers} == {"WINDOW"}
    assert launch.values["compilation_config.cudagraph_mode"] == "PIECEWISE"


@pytest.mark.parametrize(
    ("path", "text"), [("none.yaml", None), ("own.yaml", "a: ["), ("own.yaml", b"\xff\xfe\xff")]
)
def test_file_of_options_that_cannot_be_read_ends_the_server(
    place: Path, tmp_path: Path, path: str, text: str | bytes | None
) -> None:
    """It is missing, or holds no YAML or no text."""
    if text is not None:
        (tmp_path / path).write_bytes(text.encode() if isinstance(text, str) else text)

    (launch,) = _launches(_read, place, "plain", f"--config {tmp_path / path}")

    assert launch.starts is False


_OPENING = """def read():
    import yaml

    with open("/etc/hosts") as file:
        if yaml.safe_load(file):
            raise ValueError("it was read")


"""


def test_no_other_file_is_opened(tmp_path: Path) -> None:
    """Only the one that the command line names is."""
    launch = _changed(
        tmp_path,
        _ARGUMENTS,
        ("        args = self.args\n", "        args = self.args\n        read()\n"),
        ("class EngineArgs:", f"{_OPENING}class EngineArgs:"),
    )

    assert launch.starts is None
    assert launch.unchecked[0].message == "it was read"


@pytest.mark.parametrize(
    ("line", "text", "model"),
    [
        ("A=1 vllm serve own --model other", "", "own"),
        ("vllm serve --model other", "", "other"),
        ("vllm serve --config FILE", "model: own", "own"),
        ("--config FILE", "- model", None),
        ("--config FILE", "port: 1", None),
        ("--config FILE", "[", None),
        ("--config FILE.yaml", "", None),
        ("vllm serve", "", None),
    ],
)
def test_model_is_named_by_the_line_or_its_file(
    tmp_path: Path, line: str, text: str, model: str | None
) -> None:
    """The one behind `vllm serve` wins."""
    file = tmp_path / "own"
    file.write_text(text)

    assert named_model(line.replace("FILE", str(file)).split()) == model


def test_stored_draft_is_a_path_and_no_class(launches: _Of) -> None:
    """A stored name with a dot would be a class's to vLLM; messages have the name."""
    (launch,) = launches("plain", "--method named --draft llama-3.1-8b")

    assert launch.refusal is not None
    assert launch.refusal.message == "a model: llama-3.1-8b"


def test_drafts_without_a_model_have_no_layers(launches: _Of) -> None:
    """Such as those that repeat what was there before."""
    (launch,) = launches("plain", "--method ngram")

    assert {group.role for group in launch.layers} == {"target"}


@pytest.mark.parametrize(
    ("model", "line", "message", "at"),
    [
        ("plain", "--frobnicate", "unrecognized arguments: --frobnicate", "vllm"),
        ("plain", "--tensor-parallel-size 4", "not so many GPUs", "vllm/config/__init__.py"),
        ("odd", "", "3 heads are odd", "vllm/config/model.py"),
        ("windows", "--attention-backend FULL", "FULL is not valid for", "vllm/platforms/cuda.py"),
        ("refused", "", "the model's own words", "vllm/model_executor/model_loader/utils.py"),
    ],
)
def test_refusal_has_vllms_words_and_line(
    launches: _Of, model: str, line: str, message: str, at: str
) -> None:
    """Also where pydantic wraps them, and where a layer finds no backend."""
    (launch,) = launches(model, line)

    assert launch.starts is False
    assert launch.refusal is not None
    assert launch.refusal.message.startswith(message)
    assert launch.refusal.at.startswith(at)


@pytest.mark.parametrize(
    ("model", "message"),
    [("confused", "TypeError: the model's own words"), ("unusual", "RuntimeError: ")],
)
def test_error_that_may_come_of_a_stand_in_is_no_refusal(
    asked: _Of, model: str, message: str
) -> None:
    """A server with GPUs may go on there."""
    (launch,) = asked(model, "")

    assert launch.starts is None
    assert launch.unchecked[0].message.startswith(message)
    assert launch.unchecked[0].at.startswith("vllm/model_executor/model_loader/utils.py:")


def test_error_of_a_wrong_type_is_no_refusal(place: Path) -> None:
    """It may come of a value that is not that of a server."""
    (launch,) = _launches(_read, place, "confused", "")

    assert launch.refusal is None
    assert launch.unchecked[0].message == "TypeError: the model's own words"


def test_engine_that_is_not_whole_is_not_known(
    asked: _Of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers every command line."""
    write_folder(tmp_path, {"vllm/__init__.py": ""})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    first, second = asked("plain", "", "--frobnicate")

    assert first.starts is second.starts is None
    assert "cannot be imported" in first.unchecked[0].message


_LAYERS = "vllm/model_executor/layers"
_BASE = f"{_LAYERS}/attention_layer_base.py"


_OWN_CONFIG = """class Own(PreTrainedConfig):
    def __init__(self, heads, **others):
        super().__init__(**others)
        self.heads = heads


class EngineArgs:"""


def _changed_engine(tmp_path: Path, path: str, *changes: tuple[str, str]) -> Path:
    """Write the small engine with some text of a file replaced."""
    place = write_importable(tmp_path)
    _change(place, path, *changes)
    return place


def _change(place: Path, path: str, *changes: tuple[str, str]) -> None:
    file = place / "engine" / path
    text = file.read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, "utf-8")


def _changed(tmp_path: Path, path: str, *changes: tuple[str, str]) -> Launch:
    """Read the small engine with some text of a file replaced."""
    place = _changed_engine(tmp_path, path, *changes)
    return _launches(_read, place, "windows", "--cudagraph-mode FULL")[0]


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (_ARGUMENTS, "        return made\n", "        return torch.lost()\n", "no configuration"),
        (
            _BASE,
            "return self.backend",
            "return torch_lost()",
            "the backend that 0.0 takes is not known",
        ),
        (_BASE, "return None", "return torch_lost()", "the graph_support of 2.2 is not known"),
        (
            "vllm/v1/worker/utils.py",
            "return each",
            "return torch_lost()",
            "the kernel_block_size of a group of the cache is not known",
        ),
        (
            "vllm/v1/engine/core.py",
            "[KVCacheConfig(groups)]",
            "torch_lost()",
            "a group of the cache is not known",
        ),
        (_CLASSES, "cls.__name__[", "torch_lost()[", "the backend of 0.0 is not known"),
        (
            _CLASSES,
            "AttentionCGSupport.ALWAYS",
            "torch_lost()",
            "the graph_support of 0.0 is not known",
        ),
        ("vllm/platforms/cuda.py", "valid, invalid\n", "torch.lost(), {}\n", "is not valid"),
        (
            "vllm/config/compilation.py",
            "self.static_forward_context = {}",
            "self.static_forward_context = torch_lost()",
            "the layers are not known",
        ),
        ("vllm/platforms/cuda.py", "class NonNvml", "class Nvml", "no class is found"),
    ],
)
def test_what_is_not_known_leaves_the_start_unchecked(
    tmp_path: Path, path: str, old: str, new: str, message: str
) -> None:
    """Where it is not followed is said, with the line."""
    launch = _changed(tmp_path, path, (old, new))

    assert launch.starts is None
    assert message in " ".join(each.message for each in launch.unchecked)


def test_values_that_are_not_known_are_left_open(tmp_path: Path) -> None:
    """The server starts all the same; what is of another kind is shown as it is."""
    launch = _changed(
        tmp_path,
        _ARGUMENTS,
        ("made.model_config.dtype = torch.bfloat16", "made.model_config.dtype = torch.lost()"),
        (
            "made.attention_config.backend = args.attention_backend",
            "made.attention_config.flash_attn_version = config.CUDAGraphMode",
        ),
    )

    assert "unknown" in str(launch.values["model_config.dtype"])
    assert "dtype" not in launch.facts


def test_reasons_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    """The layers have their backend all the same."""
    launch = _changed(
        tmp_path,
        "vllm/platforms/cuda.py",
        ("if attn_selector_config is None:", "if not None:"),
        ("return valid, invalid", "return torch.lost()"),
    )

    assert {group.backend for group in launch.layers} == {"FULL"}
    assert launch.choices[0].against == {}


_CANDIDATE = "from vllm.v1.attention.backends.registry import Candidate\n"


@pytest.mark.parametrize("follow", [pytest.param(_ask, id="asked"), pytest.param(_read, id="read")])
def test_reasons_of_an_older_release_are_the_same(
    follow: _Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates are pairs, and reasons come without a priority; those that fit go first."""
    place = _changed_engine(
        tmp_path,
        "vllm/platforms/cuda.py",
        ("valid.append(Candidate(each, priority))", "valid.append((each, priority))"),
        ("invalid[each] = (priority, reasons)", "invalid[each] = reasons"),
        ("for each in valid:", "for each in [Candidate(*own) for own in valid]:"),
        (
            "import torch\n",
            "import torch\nfrom vllm.v1.attention.backends.registry import Candidate\n",
        ),
    )
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))

    (launch,) = _launches(follow, place, "windows", "")

    assert [*launch.choices[1].against] == ["WINDOW", "MISSING", "FULL"]
    assert launch.choices[1].against["FULL"] == ["sliding window not supported"]


@_FOLLOWED
def test_mode_of_graphs_of_an_older_release_is_its_runners(
    follow: _Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the configuration does not resolve it."""
    place = _changed_engine(
        tmp_path,
        "vllm/config/compilation.py",
        ("def resolve_cudagraph_mode_and_sizes", "def resolve_something_else"),
    )
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))

    (launch,) = _launches(follow, place, "windows", "--cudagraph-mode FULL")

    assert launch.graphs is not None
    assert launch.graphs.mode == "FULL_AND_PIECEWISE"
    assert launch.graphs.words == ["the runner lowers FULL"]


_OLDEST_RUNNER = """
from vllm.config import CUDAGraphMode
from vllm.logger import init_logger
from vllm.model_executor.layers.attention_layer_base import FullSpec

logger = init_logger("vllm.v1.worker.gpu_model_runner")


class GPUModelRunner:
    def get_kv_cache_spec(self):
        layers = self.vllm_config.compilation_config.static_forward_context.items()
        dtype = self.kv_cache_dtype
        return {name: FullSpec(16, own.head_size, dtype) for name, own in layers if own.window}

    def initialize_cudagraph_capture(self):
        builders = [group.get_metadata_builder() for group in self._attn_group_iterator()]
        if min(each.cudagraph_support.value for each in builders) < 3:
            logger.warning("the capture lowers the mode")
            self.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
"""
_NAMED = "return cls.__name__["
_TABLE = "import torch\n\nSTR_DTYPE_TO_TORCH_DTYPE = {'fp8': torch.uint8}\n"


@_FOLLOWED
@pytest.mark.parametrize(("cache", "dtype"), [("auto", "bfloat16"), ("fp8", "uint8")])
def test_oldest_release_has_specs_and_support_elsewhere(
    follow: _Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, dtype: str
) -> None:
    """Up to 0.11 the runner makes what layers keep, and a builder's support is an attribute.

    Kernels take the blocks that the engine hands out.
    """
    support = "    @classmethod\n    def get_cudagraph_support(cls, config, spec):\n        return "
    place = _changed_engine(
        tmp_path,
        "vllm/v1/attention/backends/classes.py",
        (support, "    cudagraph_support = "),
        (_NAMED, f"raise NotImplementedError\n        {_NAMED}"),
    )
    engine = place / "engine/vllm"
    for path, old, new in (
        ("config/compilation.py", "def resolve_cudagraph_mode_and_sizes", "def resolve_nothing"),
        ("model_executor/layers/attention_layer_base.py", "def get_kv_cache_spec", "def spec"),
        (
            "engine/arg_utils.py",
            "block_size = 16\n",
            f"block_size = 16\n        made.cache_config.cache_dtype = {cache!r}\n",
        ),
        ("platforms/cuda.py", "def update_block_size_for_backend", "def update_other"),
        ("v1/worker/utils.py", "def prepare_kernel_block_sizes", "def prepare_other"),
    ):
        text = (engine / path).read_text("utf-8")
        assert old in text
        (engine / path).write_text(text.replace(old, new), "utf-8")
    (engine / "v1/worker/gpu_model_runner.py").write_text(_OLDEST_RUNNER, "utf-8")
    (engine / "utils/__init__.py").write_text(_TABLE, "utf-8")
    shutil.rmtree(engine / "v1/worker/gpu")
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))

    (launch,) = _launches(follow, place, "windows", "--cudagraph-mode FULL")

    found = [(own.backend, own.graph_support, own.sizes) for own in launch.layers]
    sizes = {"block_size": 16, "head_size": 64, "sliding_window": dtype}
    assert launch.unchecked == ()
    assert ("WindowBackend", "UNIFORM_BATCH", sizes) in found
    assert launch.graphs is not None
    assert launch.graphs.mode == "FULL_AND_PIECEWISE"
    assert launch.graphs.words == ["the capture lowers the mode"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('return self.method == "eagle3"', "return torch.lost()", "--method eagle3"),
        ("made.use_v2", "made.use_v1", "--method eagle3 --runner=other"),
    ],
)
def test_draft_that_is_not_known_leaves_the_start_unchecked(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    """Its layers would be unknown."""
    path = "vllm/config/__init__.py" if "method" in old else _ARGUMENTS
    place = _changed_engine(tmp_path, path, (old, new))
    envs = place / "engine/vllm/envs.py"
    envs.write_text("import torch\n" + envs.read_text("utf-8").replace("os.environ", "torch"))

    (launch,) = _launches(_read, place, "plain", line)

    assert launch.starts is None
    assert launch.unchecked[0].message == "which draft is loaded is not known"


def test_platform_that_refuses_is_vllms_refusal(tmp_path: Path) -> None:
    """It is made before the command line is parsed."""
    refusing = "PLATFORM:\n    def __init__(self):\n        raise ValueError('no driver')\n"
    name = "class NonNvmlCudaPlatform"

    launch = _changed(
        tmp_path,
        "vllm/platforms/cuda.py",
        (f"{name}:\n", refusing.replace("PLATFORM", name) + "\n"),
    )

    assert launch.refusal is not None
    assert launch.refusal.message == "no driver"


def test_configuration_that_vllm_makes_itself_has_what_it_is_given(tmp_path: Path) -> None:
    """Of a class that derives from transformers' own."""
    launch = _changed(
        tmp_path,
        _ARGUMENTS,
        ("import torch\n", "import torch\nfrom transformers import PreTrainedConfig\n"),
        ("class EngineArgs:", _OWN_CONFIG),
        ("checked(values)", "checked({**values, 'heads': Own(values['heads'], size=1).heads})"),
    )

    assert launch.starts is True


def test_warning_that_does_not_fit_its_words_is_kept(tmp_path: Path) -> None:
    """As the engine's logger prints it, with an error of its own."""
    launch = _changed(tmp_path, "vllm/config/compilation.py", ("%s supports %s", "%d supports"))

    assert launch.graphs is not None
    assert launch.graphs.words == ["%d supports, not FULL"]


def test_gpus_of_amd_have_their_own_platform(launches: _Of) -> None:
    """It asks the driver's library, and finds the packages that vLLM's images for ROCm have."""
    lines = ("--tensor-parallel-size 2", "--attention-backend WINDOW", "--tensor-parallel-size 3")

    taken, refused, larger = launches("plain", *lines, gpu="MI300X")

    assert taken.unchecked == ()
    assert [each.backend for each in taken.layers] == ["FULL"]
    assert refused.refusal is not None
    assert refused.refusal.at == "vllm/platforms/rocm.py:34"
    assert refused.refusal.message == (
        "WINDOW is not for gfx942, 2 of 191 GiB, {'aiter': True, 'flashinfer': False}"
    )
    assert larger.starts is False


def test_fault_of_the_interpreter_is_no_answer_of_the_engines(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what is not checked, in the words of the fault."""

    def broken(*_args: object) -> None:
        raise KeyError("own")

    monkeypatch.setattr("backend_caps.engines.vllm.arguments.Layers", broken)

    [launch] = _launches(_read, place, "plain", "")

    assert launch.starts is None
    assert "the interpreter fails (KeyError: 'own')" in [each.message for each in launch.unchecked]
