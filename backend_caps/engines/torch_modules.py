"""Torch's modules and tensors, for a program that is interpreted: what they have and hold.

No element of a tensor exists: what computes with one is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend_caps.engines.source.instances import library_class
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.records import MAPPING
from backend_caps.engines.source.uncertainty import values_of
from backend_caps.engines.source.values import (
    Args,
    External,
    Hook,
    Instance,
    Named,
    Native,
    Unknown,
)
from backend_caps.engines.surroundings import Dtype, answering

_MODULE = "torch.nn.Module"
_METHODS = (
    *("apply", "bfloat16", "compile", "cpu", "cuda", "double", "eval", "extra_repr", "float"),
    *("get_buffer", "get_parameter", "get_submodule", "half", "load_state_dict", "requires_grad_"),
    *("register_forward_hook", "register_forward_pre_hook", "state_dict", "to", "train", "type"),
    *("register_load_state_dict_post_hook", "zero_grad", "forward", "training", "share_memory"),
)
"""The methods and attributes of a module whose results do not matter here."""
_ITEMS = "\0items"


def _children(owner: Instance) -> Mapping[str, Native]:
    return {name: each for name, each in owner.attributes.items() if isinstance(each, Instance)}


def _set(run: Objects, args: Args, _named: Named) -> Native:
    owner, name, value, *_ = args
    run.set_raw(owner, name, value)


def _modules(_run: Objects, args: Args, _named: Named) -> Native:
    """List a module and those within it."""
    found: dict[int, Instance] = {}
    queue: list[Native] = [args[0]]
    while queue:
        each = queue.pop()
        if isinstance(each, Instance) and id(each) not in found:
            found[id(each)] = each
            held = each.attributes.get(_ITEMS, ())
            queue += each.attributes.values()
            queue += [] if isinstance(held, Unknown) else values_of(held)
    return list(found.values())


def _init_list(run: Objects, args: Args, _named: Named) -> Native:
    owner, *given = args
    values = run.iterated(given[0]) if given and given[0] is not None else []
    owner.attributes[_ITEMS] = values


def _append(_run: Objects, args: Args, _named: Named) -> Native:
    items = args[0].attributes[_ITEMS]
    if isinstance(items, list):
        items.append(args[1])


def _items_of(owner: Instance) -> Native:
    return owner.attributes.get(_ITEMS, Unknown("modules"))


_OF_MODULE: dict[str, Native] = {
    **{name: External(f"{_MODULE}.{name}") for name in _METHODS},
    "__init__": Hook(lambda *_: None),
    "__call__": Hook(lambda _run, args, _named: Unknown(f"{args[0]}()")),
    "register_buffer": Hook(_set),
    "register_parameter": Hook(_set),
    "add_module": Hook(_set),
    "register_module": Hook(_set),
    "modules": Hook(_modules),
    "children": Hook(lambda _run, args, _named: list(_children(args[0]).values())),
    "named_children": Hook(lambda _run, args, _named: list(_children(args[0]).items())),
    "named_modules": Hook(lambda *_: Unknown("named_modules()")),
    "parameters": Hook(lambda *_: Unknown("parameters()")),
    "named_parameters": Hook(lambda *_: Unknown("named_parameters()")),
    "buffers": Hook(lambda *_: Unknown("buffers()")),
    "named_buffers": Hook(lambda *_: Unknown("named_buffers()")),
}
MODULE = library_class(_MODULE, _OF_MODULE)


def _derived(name: str, names: Mapping[str, Native]) -> Native:
    return library_class(f"torch.nn.{name}", names, (MODULE,))


_LIST: dict[str, Native] = {
    "__init__": Hook(_init_list),
    "append": Hook(_append),
    "__iter__": Hook(lambda _run, args, _named: _items_of(args[0])),
    "__len__": Hook(lambda run, args, _named: run.call(len, _items_of(args[0]))),
    "__getitem__": Hook(lambda run, args, _named: run.item(_items_of(args[0]), args[1])),
    "__setitem__": Hook(
        lambda run, args, _named: run.set_item(_items_of(args[0]), args[1], args[2])
    ),
}


class Tensor:
    """A tensor of which the shape is known, and no element."""

    def __init__(self, shape: tuple[Native, ...] | Unknown, dtype: Native) -> None:
        self.shape, self.dtype = shape, dtype
        self.set: dict[str, Native] = {}

    def interpreted_attribute(self, name: str, _default: Native) -> Native:
        """Return an attribute that was set, the shape or the dtype; others are unknown."""
        known = {"shape": self.shape, "dtype": self.dtype, **self.set}
        if name == "element_size" and isinstance(self.dtype, Dtype):
            return Hook(answering(self.dtype.itemsize))
        return known[name] if name in known else Unknown(f"a tensor's {name}")

    def interpreted_set(self, name: str, value: Native) -> None:
        """Set an attribute, such as a loader of weights."""
        self.set[name] = value

    def _computed(self, other: Native = None) -> Tensor:
        """Return the result of arithmetic, which with a number has the shape of the tensor."""
        is_number = isinstance(other, int | float | None)
        return Tensor(self.shape if is_number else Unknown("its shape"), Unknown("its dtype"))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _computed
    __truediv__ = __rtruediv__ = __floordiv__ = __pow__ = __rpow__ = __neg__ = _computed


def _made(_run: Objects, args: Args, named: Named) -> Native:
    """Make a tensor as `torch.empty` and `torch.full` do."""
    sizes = args[0] if args and isinstance(args[0], tuple | list) else args
    return Tensor(tuple(sizes), named.get("dtype", Unknown("the default dtype")))


def _of_values(_run: Objects, args: Args, named: Named) -> Native:
    """Make a tensor as `torch.tensor` does; its shape is that of the values."""
    shape = (len(args[0]),) if args and isinstance(args[0], list) else ()
    return Tensor(shape, named.get("dtype", Unknown("the dtype of its values")))


def _parameter(_run: Objects, args: Args, named: Named) -> Native:
    data = args[0] if args else named.get("data")
    return data if isinstance(data, Tensor) else Tensor(Unknown("its shape"), Unknown("its dtype"))


def torch_modules() -> dict[str, Native]:
    """Return what names of `torch.nn`, and of what makes a tensor, mean."""
    plain = ("Linear", "Embedding", "LayerNorm", "SiLU", "GELU", "Identity", "Conv1d")
    return {
        _MODULE: MODULE,
        "torch.tensor": Hook(_of_values),
        "torch.nn.Parameter": Hook(_parameter),
        "torch.nn.parameter.Parameter": Hook(_parameter),
        **{f"torch.{name}": Hook(_made) for name in ("empty", "zeros", "ones", "full", "randn")},
        "torch.nn.ModuleList": _derived("ModuleList", _LIST),
        "torch.nn.ModuleDict": library_class("torch.nn.ModuleDict", {}, (MAPPING, MODULE)),
        **{f"torch.nn.{name}": _derived(name, {}) for name in plain},
    }
