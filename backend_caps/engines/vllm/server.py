"""A server of vLLM that is configured by interpreting vLLM's source."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.command_line import CONFIG_OPTIONS, variables_of
from backend_caps.engines.model import Model, config_of
from backend_caps.engines.model_config import ModelConfig, is_base_config
from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import library
from backend_caps.engines.source.uncertainty import short
from backend_caps.engines.source.values import (
    MISSING,
    ClassValue,
    External,
    Hook,
    Instance,
    Native,
    Unknown,
)
from backend_caps.engines.surroundings import Dtype, Record, named_file
from backend_caps.engines.vllm.query_values import SECOND_RUNNER, VALUES
from backend_caps.engines.vllm.surroundings import surroundings
from backend_caps.resolution.engine import value_in

_OWNERS = {"".join(word.title() for word in owner.split("_")): owner for owner in VALUES}
"""The configurations by the names of their classes."""
_OUTSIDE = re.compile(
    r"vllm\.model_executor\.(?:parameter|warmup|kernels"
    r"|layers\.(?:linear|fusion|vocab_parallel_embedding|layernorm|activation|logits_processor"
    r"|rotary_embedding|fused_moe|resampler|utils|conv|pooler|fla"
    r"|mhc|lightning_attn))(?:\.|$)"
    r"|vllm\.(?:env_override|_custom_ops|entrypoints|kernels|lora|ir|third_party\.deep_gemm"
    r"|v1\.attention\.ops\.(?:dcp|cp_common))(?:\.|$)"
)
"""Modules that are not followed: what computes, and not what decides which attention does."""
_PARSERS = (
    "vllm.utils.argparse_utils.FlexibleArgumentParser",
    "vllm.utils.FlexibleArgumentParser",  # until 0.11
)
_ENVIRONMENT = {"VLLM_HAS_FLASHINFER_CUBIN": "1"}
"""As `query_platform` sets it: without it vLLM asks a server of NVIDIA's."""


class Server(Interpreter):
    """An interpreter that configures a server, and keeps what vLLM rewrites and warns of."""

    def __init__(
        self, index: Index, gpu: Gpu, num_gpus: int, model: Model, argv: Sequence[str]
    ) -> None:
        """Import vLLM's platform for a machine.

        Args:
            index: vLLM's source.
            gpu: the machine's GPUs.
            num_gpus: how many it has.
            model: the model, by its configuration.
            argv: the command line, of which the environment and the file are taken that it names.
        """

        def models(path: str) -> Mapping[str, object] | None:
            return model.config if path == model.name else config_of(path)

        variables, file = surroundings_of(argv)
        environ = {**_ENVIRONMENT, **variables}
        names = {**library(environ), **surroundings(index, gpu, num_gpus, models)}
        names |= named_file(file)
        names["vllm.logger.init_logger"] = Hook(lambda *_: self._logger)
        super().__init__(index, names)
        self.rewrites: list[dict[str, object]] = []
        self.warnings: list[str] = []
        warning = Hook(self._warn)
        self._logger = Record(warning=warning, warning_once=warning)
        self._is_watched = False
        platforms = self.import_module("vllm.platforms")
        is_rocm = gpu.rocm_arch is not None
        name = "rocm.RocmPlatform" if is_rocm else "cuda.NonNvmlCudaPlatform"
        self.platform: Instance = self.call(self.found_class(f"vllm.platforms.{name}"))
        platforms.names["_current_platform"] = self.platform

    def import_module(self, name: str) -> Native:
        """Leave out the modules that compute."""
        return External(name) if _OUTSIDE.match(name) else super().import_module(name)

    def construct(
        self, cls: ClassValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Make a model's configuration of a class that derives from transformers' one."""
        if not any(map(is_base_config, cls.externals)):
            return super().construct(cls, args, named)
        made = ModelConfig({}, is_complete=True, run=self, cls=cls)
        self.apply(self.attribute(cls, "__init__"), (made, *args), named)
        return made

    def _warn(self, _run: Interpreter, args: Sequence[Native], _named: Native) -> Native:
        text, *values = args
        try:
            self.warnings.append(str(text) % tuple(map(_shown, values)) if values else str(text))
        except (TypeError, ValueError):
            self.warnings.append(str(text))

    @cached_property
    def _arguments_class(self) -> ClassValue:
        return self.found_class("vllm.engine.arg_utils.EngineArgs")

    @cached_property
    def parser(self) -> Native:
        """The parser of command lines; making it takes half of the time that one takes."""
        parser = self.call(self.found_class(*_PARSERS))
        return self.call(self.attribute(self._arguments_class, "add_cli_args"), parser)

    def configured(self, argv: Sequence[str]) -> Instance:
        """Parse a command line, and make the configuration of its server."""
        parsed = self.call(self.attribute(self.parser, "parse_args"), list(argv))
        arguments = self.call(self.attribute(self._arguments_class, "from_cli_args"), parsed)
        self._is_watched = True
        contexts = self.found("vllm.usage.usage_lib.UsageContext")
        context = self.attribute(contexts, "OPENAI_API_SERVER")
        config = self.call(self.attribute(arguments, "create_engine_config"), context)
        if not isinstance(config, Instance):
            raise NotFollowedError(f"it makes no configuration that is known: {config}", self.at)
        return config

    def under(self, config: Native, function: Callable[[], Native]) -> Native:
        """Call a function while a configuration is the one that vLLM's functions ask for."""
        found: list[Native] = []
        manager = self.call(self.found("vllm.config.set_current_vllm_config"), config)
        self.managed(manager, Unknown("config"), lambda _: found.append(function()))
        return found[0]

    def part(self, config: Native, *names: str) -> Native:
        """Return an attribute of an attribute of a configuration; None where there is none."""
        for name in names:
            config = None if config is None else self.attribute_or(config, name, None)
        return config

    def values_of(self, config: Instance) -> dict[str, object]:
        """List the final values that matter here."""
        found: dict[str, object] = {}
        for owner, names in VALUES.items():
            part = self.part(config, owner)
            for name in names if part is not None else ():
                value = self.attribute_or(part, name, MISSING)
                if value is not MISSING:
                    found[f"{owner}.{name}"] = plain(value)
        return {**found, "use_v2_model_runner": plain(self.uses_second_runner(config))}

    def uses_second_runner(self, config: Instance) -> Native:
        """Return whether vLLM's second model runner runs; until 0.18 the environment says so."""
        found = self.attribute_or(config, SECOND_RUNNER, MISSING)
        if found is not MISSING:
            return found
        variables = self.found("vllm.envs.environment_variables")
        lazily = variables.get(f"VLLM_{SECOND_RUNNER.upper()}", lambda: False)
        return self.call(lazily)

    def found_class(self, *paths: str) -> ClassValue:
        """Return a class of vLLM, at the first of the paths that a release has.

        Raises:
            NotFollowedError: there is none at any of them.
        """
        for path in paths:
            found = self.found(path)
            if isinstance(found, ClassValue):
                return found
        raise NotFollowedError(f"no class is found at {' or '.join(paths)}", self.at)

    def facts_of(self, config: Instance) -> dict[str, object]:
        """List what the model's configuration tells; a value that is not known is left out."""
        model = self.part(config, "model_config")
        is_mla = self.truth(self.attribute(model, "use_mla"))
        found = {
            "attention_arch": None if is_mla is None else "mla" if is_mla else "mha",
            "dtype": plain(self.attribute(model, "dtype")),
            "head_size": plain(self.call(self.attribute(model, "get_head_size"))),
            "context_length": plain(self.attribute(model, "max_model_len")),
            "device": "cuda",
        }
        return {name: value for name, value in found.items() if isinstance(value, int | str)}

    def set_raw(self, owner: Instance, name: str, value: Native) -> None:
        """Record what vLLM assigns to its configurations."""
        before = owner.attributes.get(name, MISSING)
        super().set_raw(owner, name, value)
        config = _OWNERS.get(owner.cls.name) if self._is_watched else None
        if config is not None and before is not MISSING and name in VALUES[config]:
            old, new = plain(before), plain(owner.attributes[name])
            if old != new:
                own = {"name": f"{config}.{name}", "before": old, "after": new, "at": self.at}
                self.rewrites.append(own)


def surroundings_of(argv: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Return the environment that a command line gives, and its file of options."""
    return variables_of(argv), value_in(argv, CONFIG_OPTIONS)


def _shown(value: Native) -> Native:
    return value if isinstance(value, int | float | str) else short(value)


def plain(value: Native) -> object:
    """Make a value one that JSON has, as `query_script` writes it."""
    match value:
        case Unknown():
            return {"unknown": value.why}
        case Instance() if value.cls.is_enum:
            return value.attributes["name"]
        case Dtype():
            return value.name
        case dict():
            return {str(plain(key)): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset() | range():
            return [plain(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
    return str(value)
