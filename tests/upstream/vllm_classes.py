"""Writes what vLLM's attention backends answer, asked by calling their own methods.

Run by the Python of an environment that has that vLLM, without a GPU: `make vllm-classes`. It
imports every module with a class below `AttentionBackend`, and asks each class each question on
several machines that are described to torch and to vLLM. It writes a line for the root, and one for
each class with the answers that are not the root's. Nothing is read by our reader.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

Value = Any
"""A value of vLLM or of torch, whose classes are not known here."""
HERE = Path(__file__).resolve().parent
ENGINES = HERE.parents[1] / "backend_caps" / "engines"
MACHINES: Mapping[str, Mapping[str, object]] = {
    "A100": {"compute_capability": (8, 0)},
    "H100": {"compute_capability": (9, 0)},
    "B200": {"compute_capability": (10, 0)},
    "RTX PRO 6000": {"compute_capability": (12, 0)},
    "MI300X": {"compute_capability": (9, 4), "gcn_arch": "gfx942", "rocm": "7.2"},
}
SIZES = (*range(1, 65), *range(72, 1100, 8), 2048, 4096)
DTYPES = ("float16", "bfloat16", "float32", "float64")
CAPABILITIES = tuple((major, minor) for major in range(7, 14) for minor in range(4))
_PREDICATE = re.compile(r"(?:supports|is)_")
_BACKEND = re.compile(rb"^ *class \w+\([^)]*Backend", re.MULTILINE)
_NOTHING = "no class"
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


def _load(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"backend_caps_{path.stem}", path)
    assert spec is not None, "a file is a module"
    assert spec.loader is not None, "and has a loader"
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(name: str) -> Value:
    """Make torch and vLLM see a machine, and return what stands in for packages."""
    machine = {
        "device_name": name,
        "memory_mib": 81_559,
        "num_multiprocessors": 132,
        "num_gpus": 1,
        "cuda": None if "rocm" in MACHINES[name] else "13.0",
        "rocm": None,
        "gcn_arch": None,
        **MACHINES[name],
    }
    stand_ins: Value = _load(ENGINES / "query_machine.py")
    platform: Value = _load(ENGINES / "vllm" / "query_platform.py")
    stand_ins.stand_in(machine)
    platform.describe(machine, stand_ins)
    if machine["rocm"]:
        platforms: Value = importlib.import_module("vllm.platforms")
        rocm: Value = importlib.import_module("vllm.platforms.rocm")
        platforms._current_platform = rocm.RocmPlatform()  # noqa: SLF001 - as vLLM sets it
    platform.silence()
    return platform


@contextmanager
def configured(platform: Value) -> Iterator[Value]:
    """Set the configuration of a server that some methods ask for."""
    arguments = importlib.import_module("vllm.engine.arg_utils")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL), "utf-8")
        own = arguments.EngineArgs(model=folder, skip_tokenizer_init=True)
        config = own.create_engine_config()
        with platform.current(config):
            yield config


def classes(root: Value, platform: Value, config: Value) -> dict[str, Value]:
    """Import the modules with classes below the root, and list those classes by their paths."""
    for name in _modules():
        parent = name.rpartition(".")[0]
        try:
            with platform.without_memory(config):  # some have buffers of their own
                if find_spec(f"{parent}.model"):  # imports the parts of a model in its order
                    importlib.import_module(f"{parent}.model")
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - it says which class is not asked
            print(f"not imported: {name}: {type(error).__name__}: {error}"[:160], file=sys.stderr)  # noqa: T201
    return {f"{each.__module__}.{each.__qualname__}": each for each in _below(root)}


def _modules() -> list[str]:
    """List the modules that the registry names, and those with a class statement of a backend."""
    registry: Value = importlib.import_module("vllm.v1.attention.backends.registry")
    members = [*registry.AttentionBackendEnum, *registry.MambaAttentionBackendEnum]
    names = {each.value.rpartition(".")[0] for each in members if each.value}
    folder = Path(registry.__file__).parents[3]
    for path in folder.rglob("*.py"):
        if _BACKEND.search(path.read_bytes()):
            names.add(".".join(path.relative_to(folder.parent).with_suffix("").parts))
    # vLLM imports one of a model's two parts; both register the same operators.
    other = ".nvidia." if importlib.import_module("torch").version.hip else ".amd."
    there = (name for name in sorted(names) if other not in name)
    return [name for name in there if _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _below(root: Value) -> Iterator[Value]:
    for each in root.__subclasses__():
        yield each
        yield from _below(each)


def _answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - that it raises is the answer
        return {"raises": type(error).__name__}


def passing(test: Value, arguments: Mapping[Value, Value]) -> object:
    """List the arguments that a test lets pass, by their names; `all` and `none` of them."""
    found = [name for name, each in arguments.items() if test(each)]
    if len(found) in {0, len(arguments)}:
        return "all" if found else "none"
    return found


def questions(root: Value, builder: Value, config: Value) -> dict[str, Callable[[Value], object]]:
    """Return the questions by name: a function of a class that answers each."""
    torch: Value = importlib.import_module("torch")
    cache: Value = importlib.import_module("vllm.config.cache")
    interface: Value = importlib.import_module("vllm.platforms.interface")
    module: Value = sys.modules[root.__module__]
    spec: Value = importlib.import_module("vllm.v1.kv_cache_interface").FullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, dtype=torch.bfloat16
    )
    tests: Mapping[str, Mapping[Value, Value]] = {
        "supports_head_size": {size: size for size in SIZES},
        "supports_block_size": {size: size for size in SIZES},
        "supports_dtype": {name: getattr(torch, name) for name in DTYPES},
        "supports_kv_cache_dtype": {name: name for name in typing.get_args(cache.CacheDType)},
        "supports_compute_capability": {
            f"{major}.{minor}": interface.DeviceCapability(major, minor)
            for major, minor in CAPABILITIES
        },
        "supports_attn_type": {each.value: each.value for each in module.AttentionType},
    }

    def test(cls: Value, name: str) -> object:
        return passing(getattr(cls, name), tests[name])

    def builder_of(cls: Value) -> Value:
        return builder if cls is root else cls.get_builder_cls()

    def graphs(cls: Value) -> object:
        return builder_of(cls).get_cudagraph_support(config, spec).name

    def of_builder(cls: Value, name: str) -> object:
        value = inspect.getattr_static(builder_of(cls), name)
        return _NOTHING if callable(value) else plain(getattr(builder_of(cls), name))

    found = {name: partial(test, name=name) for name in tests if hasattr(root, name)}
    found |= {name: partial(_call, name=name) for name in _predicates(root)}
    found |= {name: partial(_constant, name=name) for name in _constants(root)}
    found |= {f"builder.{name}": partial(of_builder, name=name) for name in _constants(builder)}
    blocks = "get_supported_kernel_block_sizes"
    return {
        **found,
        blocks: partial(_call, name=blocks),
        "get_builder_cls": lambda cls: builder_of(cls).__name__,
        "get_cudagraph_support": graphs,
    }


def _predicates(root: Value) -> list[str]:
    """List the root's methods that answer a question without an argument."""
    names = (each for each in dir(root) if _PREDICATE.match(each))
    methods = {name: getattr(root, name) for name in names if callable(getattr(root, name))}
    return [name for name, each in methods.items() if not inspect.signature(each).parameters]


def _constants(root: Value) -> list[str]:
    own = {name: each for name, each in vars(root).items() if not name.startswith("_")}
    return [name for name, each in own.items() if each is None or isinstance(each, bool | int)]


def _call(cls: Value, name: str) -> object:
    return plain(getattr(cls, name)())


def _constant(cls: Value, name: str) -> object:
    return plain(getattr(cls, name))


def plain(value: Value) -> object:
    """Make a value one that JSON has; `MultipleOf(16)` becomes a text."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return f"multiple of {value.base}" if hasattr(value, "base") else str(value)


def asked(machine: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Answer all questions for the root and each class, on a machine."""
    platform = described(machine)
    backend: Value = importlib.import_module("vllm.v1.attention.backend")
    root, builder = backend.AttentionBackend, backend.AttentionMetadataBuilder
    with configured(platform) as config:
        found = classes(root, platform, config)
        own = questions(root, builder, config)
        for path, cls in [(f"{root.__module__}.{root.__name__}", root), *sorted(found.items())]:
            yield path, {name: _answer(partial(ask, cls)) for name, ask in own.items()}


def on_machines(answers: Mapping[str, object]) -> object:
    """Return the one answer, or else the answer of each machine."""
    distinct = {json.dumps(each) for each in answers.values()}
    return next(iter(answers.values())) if len(distinct) == 1 else {"by machine": answers}


def lines() -> Iterator[str]:
    """Ask on each machine in a process of its own, and write the table."""
    by_class: dict[str, dict[str, dict[str, object]]] = {}
    for machine in MACHINES:
        child = subprocess.run(
            [sys.executable, __file__, machine], stdout=subprocess.PIPE, check=True
        )
        for line in child.stdout.splitlines():
            if line.startswith(b'["'):
                path, own = json.loads(line)
                for question, answer in own.items():
                    by_class.setdefault(path, {}).setdefault(question, {})[machine] = answer
    yield json.dumps({"vllm": version("vllm"), "machines": list(MACHINES), "sizes": SIZES})
    of_root: dict[str, object] = {}
    for path, own in by_class.items():
        answers = {name: on_machines(each) for name, each in own.items()}
        of_root = of_root or answers
        differing = {n: each for n, each in answers.items() if each != of_root[n]}
        yield json.dumps({"class": path, **(answers if of_root is answers else differing)})


def main(machines: Iterable[str]) -> None:
    """Write the table, or what is answered on one machine."""
    for machine in machines:
        for path, own in asked(machine):
            print(json.dumps([path, own]), flush=True)  # noqa: T201
        return
    for line in lines():
        print(line)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
