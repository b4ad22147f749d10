"""What the roots of vLLM's families have that is no capability here, or more than one holds."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from backend_caps.capability.backend import Reading
from backend_caps.capability.provenance import Origin
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.vllm.constants import Constants
from backend_caps.engines.vllm.lookup import Answer, Lookup

_AS_CAPABILITIES = frozenset(
    {
        "_cudagraph_support",
        "supported_dtypes",
        "supports_block_size",
        "supports_compute_capability",
        "supports_dtype",
        "supports_head_size",
        "supports_kv_cache_dtype",
    }
)
_MORE = ("get_builder_cls", "get_supported_kernel_block_sizes")


class Flags:
    """Reads the flags that the roots have; a new version's new ones too."""

    def __init__(self, constants: Constants, lookup: Lookup) -> None:
        self._constants = constants
        self._lookup = lookup
        self._flags: dict[ClassDef, list[str]] = {}

    def of_backend(self, root: ClassDef | None, backend: ClassDef) -> dict[str, Reading]:
        """Say what a backend states of its root's flags, and of its blocks and builder."""
        return self._readings(backend, (*self._names(root), *_MORE))

    def of_builder(self, root: ClassDef | None, builder: ClassDef) -> dict[str, Reading]:
        """Say what a metadata builder states; what instances change is not followed."""
        return self._readings(builder, self._names(root))

    def _names(self, root: ClassDef | None) -> list[str]:
        """List a root's flags: what its body assigns, and its methods that answer a question."""
        if root is None:
            return []
        if root not in self._flags:
            names = self._lookup.names_of(root).items()
            flags = {name for name, is_method in names if not is_method or _is_question(name)}
            self._flags[root] = sorted(flags - _AS_CAPABILITIES)
        return self._flags[root]

    def _readings(self, asked: ClassDef, names: Iterable[str]) -> dict[str, Reading]:
        found = {name: self._lookup.below_root(asked, name) for name in names}
        return {name: self._reading(asked, each) for name, each in found.items() if each}

    def _reading(self, asked: ClassDef, answer: Answer) -> Reading:
        value = self._value(answer)
        is_own = answer.owner is asked
        is_known = value is not None or _is_none(answer)
        stated = Origin.DECLARED if is_known else Origin.CONDITIONAL
        return Reading(
            origin=stated if is_own else Origin.INHERITED,
            words=answer.text if is_known else answer.text_in_full,
            value=value,
            declared_at=answer.at,
            inherited_from=None if is_own else answer.owner.name,
        )

    def _value(self, answer: Answer) -> object:
        match answer.only:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if answer.name == "get_builder_cls":
                return name
            case ast.expr() as value:
                return self._constants.items(value, answer)
        return None


def _is_question(method: str) -> bool:
    return method.startswith(("supports_", "supported_", "is_"))


def _is_none(answer: Answer) -> bool:
    match answer.only:
        case ast.Constant(value=None):
            return True
    return False
