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
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.eagle3 import Eagle3Config
from backend_caps.runtime.model.llama import dtype_of
from backend_caps.runtime.options import EngineOptions, check_flags, graph_sizes_of
from backend_caps.runtime.speculation import Algorithm, SpecSettings
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
        config, sizes = _sizes(flags, model_path, options, draft_model_path)
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
    _, sizes = _sizes(plan.flags, model_path, options or EngineOptions(), draft_model_path)
    return Configuration.from_plan(plan, **sizes, device=device, debug=debug, streams=streams)


class _Sizes(TypedDict):
    """What `configure` cannot know of this engine, by the names of its arguments."""

    pool_size: int
    draft: DraftShape | None
    graph_sizes: Mapping[Role, GraphSizes]


def _sizes(
    flags: ServerFlags,
    model_path: str | Path,
    options: EngineOptions,
    draft_model_path: str | Path | None,
) -> tuple[LlamaConfig, _Sizes]:
    """Read the sizes from config.json alone: the target's, and that of an EAGLE3 head."""
    check_flags(flags)
    config = LlamaConfig.from_folder(model_path)
    settings, draft = SpecSettings.from_flags(flags), None
    if settings is not None:
        dtype, hidden_size = dtype_of(options.dtype, config), None
        if settings.algorithm is Algorithm.EAGLE:
            hidden_size = config.hidden_size
        elif settings.algorithm is Algorithm.EAGLE3:
            folder = draft_folder(draft_model_path, settings.algorithm)
            hidden_size = Eagle3Config.from_folder(folder).hidden_size
        draft = shape_of(settings, hidden_size, dtype) if settings.has_draft_model else None
    pool_size, graph_sizes = options.max_running_requests + 1, graph_sizes_of(options, settings)
    return config, _Sizes(pool_size=pool_size, draft=draft, graph_sizes=graph_sizes)


def draft_folder(draft_model_path: str | Path | None, algorithm: Algorithm) -> str | Path:
    """Return the folder of what drafts.

    Raises:
        EngineError: `draft-model`: none is named.
    """
    if draft_model_path is not None:
        return draft_model_path
    raise EngineError(
        "draft-model",
        f"--speculative-algorithm {algorithm.value} drafts with a model, and none was given; a "
        f"Hugging Face folder of one was expected. Name it: Engine(..., draft_model_path=...).",
    )


def shape_of(settings: SpecSettings, hidden_size: int | None, dtype: torch.dtype) -> DraftShape:
    """Say what a draft model hands to the next step; `hidden_size` is None if it reads no state."""
    return DraftShape(
        topk=settings.topk,
        hidden_size=hidden_size,
        dtype=None if hidden_size is None else dtype,
        accept_tokens=settings.accept_tokens,
    )
