"""What an engine's argument processing asks of the machine, and of the model's configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import yaml

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.query import CUDA, ROCM
from backend_caps.engines.source.instances import library_class
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.values import ABSENT, MISSING, Hook, Instance, Native, Unknown

_MIB = 1 << 20
TORCH = (2, 13, 0)
"""The release of torch that engines find."""
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}
_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
"""The sizes of elements; of all others it is one byte."""
_DTYPES = (
    *_ALIASES,
    *_BYTES,
    *("int8", "uint8", "bool", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)


Models: TypeAlias = Callable[[str], Mapping[str, object] | None]
"""Returns a model's configuration by its path; None where it is not known."""


Files: TypeAlias = Collection[str]
"""The paths of files that are there."""


class Dtype:
    """One of torch's dtypes, which may have several names."""

    __slots__ = ("itemsize", "name")

    def __init__(self, name: str) -> None:
        self.name = _ALIASES.get(name, name)
        self.itemsize = _BYTES.get(self.name, 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dtype) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"torch.{self.name}"

    __repr__ = __str__

    @property
    def is_floating_point(self) -> bool:
        """Whether it is of numbers with a fraction."""
        return "float" in self.name


class Record:
    """A value of which some attributes are known, such as a device's properties."""

    def __init__(self, **attributes: Native) -> None:
        self.attributes = attributes

    def interpreted_attribute(self, name: str, _default: Native) -> Native:
        """Return an attribute; another one is unknown."""
        if name in self.attributes:
            return self.attributes[name]
        return Unknown(f"{type(self).__name__.lower()}.{name}")


class FilePath:
    """A path, of which what is in a model's folder is known: its `config.json`, and no more."""

    def __init__(self, path: str, models: Models, own: Files = frozenset()) -> None:
        self.path = path.rstrip("/")
        self._models = models
        self._own = own

    def __str__(self) -> str:
        return self.path

    def __truediv__(self, other: object) -> FilePath:
        return FilePath(f"{self.path}/{other}", self._models, self._own)

    @property
    def kind(self) -> str | None:
        """`file`, `folder`, `missing`, or None where it is not known."""
        if self.path in self._own:
            return "file"
        folder, _, last = self.path.rpartition("/")
        if last == "config.json" and self._models(folder) is not None:
            return "file"  # which names the same model as its folder does
        if self._models(self.path) is not None:
            return "folder"
        while folder:
            if self._models(folder) is not None:
                return "missing"
            folder = folder.rpartition("/")[0]
        return None

    def interpreted_attribute(self, name: str, default: Native) -> Native:
        """Return what is known of the path."""
        folder, _, last = self.path.rpartition("/")
        stem, dot, suffix = last.rpartition(".")
        known = {"name": last, "suffix": dot + suffix, "stem": stem or last}
        if name in known:
            return known[name]
        if name == "parent":
            return FilePath(folder, self._models, self._own)
        wanted = {"exists": ("file", "folder"), "is_file": ("file",), "is_dir": ("folder",)}
        if name in wanted:
            kind = self.kind
            return Hook(
                answering(
                    Unknown(f"{name} of {self.path}") if kind is None else kind in wanted[name]
                )
            )
        if name in {"glob", "rglob", "iterdir"}:
            return Hook(
                answering([] if self.kind == "folder" else Unknown(f"files of {self.path}"))
            )
        if name == "is_absolute":
            return Hook(answering(self.path.startswith("/")))
        if name in {"as_posix", "__fspath__"}:
            return Hook(answering(self.path))
        return default if default is not MISSING else Unknown(f"{name} of {self.path}")


def files_of(models: Models, own: Files = frozenset()) -> dict[str, Native]:
    """Return what names of Python's library that ask for files mean.

    Args:
        models: the models whose folders are known.
        own: the engine's own files, by their paths in its source.
    """

    def path(_run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
        if not args or not isinstance(args[0], str | FilePath):
            return Unknown("a path")
        first, *others = map(str, args)
        return FilePath("/".join([first, *others]), models, own)

    def asked(name: str) -> Hook:
        def answer(run: Objects, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
            found = path(run, args, named)
            return found if isinstance(found, Unknown) else run.call(run.attribute(found, name))

        return Hook(answer)

    return {
        "pathlib.Path": Hook(path, {"__module__": "pathlib", "__name__": "Path"}),
        "os.path.exists": asked("exists"),
        "os.path.isfile": asked("is_file"),
        "os.path.isdir": asked("is_dir"),
        "os.fspath": Hook(lambda _run, args, _named: str(args[0])),
        **dict.fromkeys(("os.path.expanduser", "os.path.abspath"), _ITSELF),
        "glob.glob": Hook(answering([])),
    }


_ITSELF = Hook(lambda _run, args, _named: args[0])
_OPENED = library_class(
    "io.TextIOWrapper", {"__enter__": _ITSELF, "__exit__": Hook(lambda *_: None)}
)


def named_file(path: str | None) -> dict[str, Native]:
    """Return what opens and reads the one YAML file that a command line names; others stay shut."""

    def opened(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
        if path is None or str(args[0]) != path:
            return Unknown(f"open({args[0]})")
        try:
            return Instance(_OPENED, {"text": Path(path).read_text("utf-8")})
        except (OSError, ValueError) as error:
            raise run.raised(error) from error

    def loaded(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
        if not isinstance(args[0], Instance):
            return Unknown("yaml.safe_load(...)")
        try:
            return yaml.safe_load(args[0].attributes["text"])
        except yaml.YAMLError as error:
            raise run.raised(error) from error

    return {"open()": Hook(opened), "yaml.safe_load": Hook(loaded)}


def torch_of(gpu: Gpu, num_gpus: int) -> dict[str, Native]:
    """Return what names of torch mean on a machine."""
    memory = gpu.memory_mib * _MIB
    major, minor = gpu.compute_capability
    properties = Record(
        name=gpu.name,
        major=major,
        minor=minor,
        total_memory=memory,
        multi_processor_count=gpu.multiprocessors,
        gcnArchName=gpu.rocm_arch or "",
        is_integrated=False,
    )
    answers: Mapping[str, object] = {
        "torch.cuda.is_available": True,
        "torch.cuda.is_initialized": True,
        "torch.cuda.device_count": num_gpus,
        "torch._C._cuda_getDeviceCount": num_gpus,
        "torch.cuda._device_count_nvml": num_gpus,
        "torch.cuda._is_compiled": True,
        "torch.cuda.current_device": 0,
        "torch.cuda.get_device_capability": (major, minor),
        "torch.cuda.get_device_name": gpu.name,
        "torch.cuda.get_device_properties": properties,
        "torch.cuda.mem_get_info": (memory, memory),
        "torch.xpu.is_available": False,
        "torch.mps.is_available": False,
        "torch.backends.mps.is_available": False,
        "torch.cpu.is_available": True,
        "torch.cpu._is_amx_tile_supported": False,
        "torch.distributed.is_initialized": False,
        "torch.distributed.is_available": True,
    }
    names: dict[str, Native] = {path: Hook(answering(each)) for path, each in answers.items()}
    names |= {f"torch.{name}": Dtype(name) for name in _DTYPES}
    names["torch.dtype"] = Dtype
    names["torch.device"] = Hook(lambda _run, args, _named: _device(args[0]))
    names |= {
        "torch.version.cuda": CUDA if gpu.rocm_arch is None else None,
        "torch.version.hip": ROCM if gpu.rocm_arch else None,
        "torch.version.musa": ABSENT,
        "torch.npu": ABSENT,
        "torch.hpu": ABSENT,
        "torch.musa": ABSENT,
        "torch.__version__": ".".join(map(str, TORCH)),
    }
    return names


def _device(text: Native) -> Native:
    if not isinstance(text, str):
        return Unknown("torch.device(...)")
    kind, _, index = text.partition(":")
    return Record(type=kind, index=int(index) if index else None)


def answering(value: Native) -> Callable[..., Native]:
    """Return what a `Hook` runs that always returns a value."""
    return lambda _run, _args, _named: value
