"""The configuration of a model, as an interpreted program has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from backend_caps.engines.model_classes import COMPUTED
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.values import (
    ClassValue,
    Descriptor,
    External,
    Hook,
    Native,
    Unknown,
)

_PER_LAYER = "per_layer_config"
"""What some layers have in place of the values of all; read, the configuration of each layer."""


class ModelConfig:
    """A model's `config.json`, as transformers or a class of SGLang's own reads it.

    A name that it lacks may have a default in transformers' own class; unless the file is
    complete, it is unknown.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        *,
        is_complete: bool,
        run: Objects,
        cls: ClassValue | None = None,
    ) -> None:
        self.values: dict[str, Native] = {}
        self.is_complete = is_complete
        self.run = run
        self.cls = cls
        for name, value in values.items():
            self.values[name] = Unknown(f"the model's {name}") if value is COMPUTED else value
            is_part = name.endswith("_config") and "quant" not in name and name != _PER_LAYER
            if isinstance(value, dict) and is_part:
                self.values[name] = ModelConfig(value, is_complete=is_complete, run=run)

    def interpreted_attribute(self, name: str, default: Native) -> Native:
        """Return a value of the file, or what the class or transformers has of that name."""
        own = None if self.cls is None else self.cls.lookup(name)
        if name in _OF_LAYERS:
            return _OF_LAYERS[name](self)
        if name in self.values and not isinstance(own, Descriptor):
            return self.values[name]
        if own is not None and self.cls is not None:
            return self.run.bound(own, self, self.cls)
        if name in _METHODS:
            return Hook(lambda run, args, named: _METHODS[name](self, run, args, named))
        if name in _DEFAULTS:
            return _DEFAULTS[name]
        if self.is_complete or name in _OPTIONAL or name.startswith("_"):
            return default
        return Unknown(f"the model's {name}")

    def interpreted_set(self, name: str, value: Native) -> None:
        """Set a value."""
        self.values[name] = value

    def interpreted_instance(self, _run: Objects, wanted: Native) -> bool:
        """Compare the model's type with that of a class."""
        if self.cls is not None and wanted in self.cls.line:
            return True
        if isinstance(wanted, ClassValue):
            stated = wanted.lookup("model_type") if wanted.has("model_type") else None
            return stated == self.values.get("model_type") and stated is not None
        return isinstance(wanted, External) and (
            is_base_config(wanted) or _is_named_after(str(self.values.get("model_type")), wanted)
        )

    def interpreted_copy(self, copied: Callable[[Native], Native]) -> Native:
        """Copy it, with its parts."""
        return self._with({name: copied(value) for name, value in self.values.items()})

    @property
    def is_heterogeneous(self) -> Native:
        """Whether some layers have values of their own."""
        stated = self.values.get(_PER_LAYER)
        return stated if isinstance(stated, Unknown) else stated is not None

    @property
    def layers(self) -> Native:
        """The configuration of each layer."""
        stated, number = self.values.get(_PER_LAYER), self.values.get("num_hidden_layers")
        if isinstance(stated, Unknown) or not isinstance(number, int):
            return Unknown(f"the model's {_PER_LAYER}")
        own = {int(at): values for at, values in (stated or {}).items()}
        return [self._with({**own.get(at, {}), _PER_LAYER: None}) for at in range(number)]

    def _with(self, values: Mapping[str, Native]) -> ModelConfig:
        made = ModelConfig({}, is_complete=self.is_complete, run=self.run, cls=self.cls)
        made.values = {**self.values, **values}
        return made

    def __str__(self) -> str:
        return f"the model's {self.values.get('model_type')} configuration"


def is_base_config(cls: Native) -> bool:
    """Return whether a class is the one of transformers that all configurations have as a base."""
    return isinstance(cls, External) and cls.path.endswith(
        (".PretrainedConfig", ".PreTrainedConfig")
    )


def _is_named_after(model_type: str, cls: External) -> bool:
    """Return whether a class is transformers' own of a model's type, as `Qwen2VLConfig` is."""
    package, _, name = cls.path.rpartition(".")
    plain = name.removesuffix("Config").replace("_", "").lower()
    return package.startswith("transformers") and plain == model_type.replace("_", "").lower()


def constructed_config(
    run: Objects, cls: ClassValue, values: Mapping[str, Native], *, is_complete: bool
) -> ModelConfig:
    """Run the constructor of a configuration's class; all that it is given are attributes."""
    made = ModelConfig(values, is_complete=is_complete, run=run, cls=cls)
    if cls.has("__init__"):
        run.apply(cls.lookup("__init__"), (made,), values)
    return made


def _text_config(own: ModelConfig, _run: Objects, _a: Sequence[Native], _n: Native) -> Native:
    for name in ("text_config", "language_config", "llm_config", "thinker_config"):
        if isinstance(own.values.get(name), ModelConfig):
            return own.values[name]
    return own


def _updated(own: ModelConfig, _run: Objects, args: Sequence[Native], _n: Native) -> Native:
    own.values.update(args[0])


_METHODS: Mapping[str, Callable[..., Native]] = {
    "get_text_config": _text_config,
    "update": _updated,
    "to_dict": lambda own, *_: dict(own.values),
    "standardize_rope_params": lambda *_: None,
    "validate_rope": lambda *_: None,
    "validate_layer_type": lambda *_: None,
}
_DEFAULTS: Mapping[str, object] = {
    "is_encoder_decoder": False,
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "torch_dtype": None,
    "dtype": None,
}
_OPTIONAL = frozenset({"quantization_config", "compression_config"})
_OF_LAYERS: Mapping[str, Callable[[ModelConfig], Native]] = {
    _PER_LAYER: lambda own: own.layers,
    "is_heterogeneous": lambda own: own.is_heterogeneous,
}
"""What every configuration has since transformers 5.17."""
