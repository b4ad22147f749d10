"""What transformers and SGLang import of torchvision, with no image operation behind it.

PyPI has torchvision for CUDA's torch alone. No text model calls any of it: an attempt to is an
AttributeError or a TypeError of the class that stands for the function.
"""

from __future__ import annotations

import sys
from enum import Enum
from types import ModuleType

__version__ = "0"
__path__: list[str] = []
_MODULES = ("io", "ops", "transforms", "transforms.functional", "transforms.v2")


class InterpolationMode(Enum):
    """The ways to interpolate, by torchvision's names: transformers maps Pillow's to them."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _Inert(ModuleType):
    """A module that has whatever class it is asked for."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


for _name in (*_MODULES, "transforms.v2.functional"):
    _parent, _, _own = f"{__name__}.{_name}".rpartition(".")
    _made = _Inert(f"{__name__}.{_name}")
    _made.__path__ = []
    _made.__dict__["InterpolationMode"] = InterpolationMode
    sys.modules[_made.__name__] = _made
    setattr(sys.modules[_parent], _own, _made)
