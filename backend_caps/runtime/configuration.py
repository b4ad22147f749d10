"""The configuration of this package's own engine, for a model's folder.

The sizes that `configure` asks an engine for are read from the folders' config.json here, before
any weight is loaded: rows of the request pool, the draft's shape, and the sizes of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TypedDict

import torch
from torch.distributed import ProcessGroup

from backend_caps.capability.facts import Facts
from backend_caps.capability.kind import Role
from backend_caps.capability.vocabulary import AttentionArch, Capabilities
from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.relay import DraftShape
from backend_caps.relay.streams import DeviceStreams
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.resolution.rules import RuleSet
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.llama import dtype_of
from backend_caps.runtime.options import EngineOptions, check_flags, graph_sizes_of
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.speculative.drafting import draft_shape
from backend_caps.startup.agreement import Ranks, send_failure
from backend_caps.startup.configuration import Configuration
from backend_caps.startup.configure import check_device, configure
from backend_caps.startup.graph_choice import GraphSizes


def configure_engine(  # noqa: PLR0913 - what a server is started with
    flags: ServerFlags,
    model_path: str | Path,
    *,
    device: str | torch.device,
    draft_model_path: str | Path | None = None,
    options: EngineOptions | None = None,
    facts: Facts | None = None,
    registry: Registry | None = None,
    rules: str | RuleSet = RUNTIME,
    policy: Policy | str = Policy.WARN,
    unsafe_override: Capabilities | None = None,
    lock: str | PathLike[str] | None = None,
    group: ProcessGroup | Ranks | None = None,
    debug: bool = False,
    streams: DeviceStreams | None = None,
) -> Configuration:
    """Configure this package's engine: `configure`, with what the model's folder says.

    Args:
        flags: the server's.
        model_path: a Hugging Face folder of the target; its config.json is read.
        device: where the engine runs.
        draft_model_path: a Hugging Face folder of what drafts; an EAGLE3 head's config.json is
            read.
        options: room and cutting, as the engine gets them.
        facts: what is known of machine and model; the folder's config fills in the rest.
        registry: what is installed; found unless given.
        rules: what flags force; this runtime's own rules unless given.
        policy: what is done about problems.
        unsafe_override: values to put in place of the joined ones.
        lock: a file of `backend-caps lock` to compare with.
        group: the ranks that have to come to one plan.
        debug: check every row of the FutureMap that is written and read; slow.
        streams: the device's streams, where the declared traits are not the ones to use.

    Raises:
        BackendCapsError: what `configure` raises, and flags or folders that this engine does not
            serve.
    """
    options = options or EngineOptions()
    try:
        check_flags(flags)
        config = LlamaConfig.from_folder(model_path)
        sizes = _sizes(flags, config, options, draft_model_path)
        dtype = str(dtype_of(options.dtype, config)).removeprefix("torch.")
    except BackendCapsError as error:
        if group is not None:
            send_failure(error, Ranks.of(group), given=flags)
        raise
    read = {
        "dtype": dtype,
        "kv_cache_dtype": dtype if flags.kv_cache_dtype == "auto" else flags.kv_cache_dtype,
        "head_size": config.head_dim,
        "attention_arch": AttentionArch.MHA,
        "context_length": flags.context_length or config.max_position_embeddings,
    }
    return configure(
        flags,
        **sizes,
        device=device,
        facts=Facts.model_validate({**read, **(facts or Facts()).known()}),
        registry=registry,
        rules=rules,
        policy=policy,
        unsafe_override=unsafe_override,
        lock=lock,
        group=group,
        debug=debug,
        streams=streams,
    )


def configuration_of(
    plan: Plan,
    model_path: str | Path,
    *,
    device: str | torch.device,
    draft_model_path: str | Path | None = None,
    options: EngineOptions | None = None,
    debug: bool = False,
    streams: DeviceStreams | None = None,
) -> Configuration:
    """Make the engine's configuration of a plan that is already resolved.

    The arguments are those of `configure_engine`.

    Raises:
        BackendCapsError: flags, device or folder cannot be served.
    """
    check_flags(plan.flags)
    if streams is None:
        check_device(device)
    config = LlamaConfig.from_folder(model_path)
    sizes = _sizes(plan.flags, config, options or EngineOptions(), draft_model_path)
    return Configuration.from_plan(plan, **sizes, device=device, debug=debug, streams=streams)


class _Sizes(TypedDict):
    """What `configure` cannot know of this engine, by the names of its arguments."""

    pool_size: int
    draft: DraftShape | None
    graph_sizes: Mapping[Role, GraphSizes]


def _sizes(
    flags: ServerFlags,
    config: LlamaConfig,
    options: EngineOptions,
    draft_model_path: str | Path | None,
) -> _Sizes:
    settings = SpecSettings.from_flags(flags)
    draft = None
    if settings is not None:
        draft = draft_shape(settings, config, dtype_of(options.dtype, config), draft_model_path)
    return _Sizes(
        pool_size=options.max_running_requests + 1,
        draft=draft,
        graph_sizes=graph_sizes_of(options, settings),
    )
