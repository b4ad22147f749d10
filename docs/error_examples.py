# ruff: noqa: INP001 - the folder holds pages, and the modules that keep them true
"""One example of every error, so that its sentence can be read before it is met."""

from __future__ import annotations

from backend_caps.capability.status import Problem
from backend_caps.cli.generate import NoBackendNamedError
from backend_caps.cli.job import ModelDtypeError
from backend_caps.cli.output import OutputError
from backend_caps.cli.plugin_errors import PluginFolderError, PluginNameError
from backend_caps.conformance.dry_run.errors import CannotRunError, DryStartError, StandInError
from backend_caps.conformance.kit.errors import (
    BaselineError,
    EvidenceError,
    UncheckableError,
    UnknownCaseError,
    UnknownCheckError,
    UnknownSubjectError,
)
from backend_caps.conformance.measuring.errors import NotMeasuredError
from backend_caps.conformance.simulator.errors import (
    CaptureError,
    DirtyRunError,
    GraphStateError,
    NestedSimulationError,
    ScheduleError,
    SimDeviceError,
    UnsupportedOperatorError,
)
from backend_caps.discovery.errors import (
    DeadlineError,
    RepeatedBackendError,
    StringInsteadOfListError,
)
from backend_caps.discovery.handed_down import RegistrationsDifferError
from backend_caps.engines.errors import (
    EngineNotInstalledError,
    EngineSourceError,
    UnknownEngineError,
)
from backend_caps.engines.sglang.drop_in import AttnBackendsError
from backend_caps.engines.sglang.live_flags import RuntimeContextError
from backend_caps.errors import BackendCapsError
from backend_caps.relay import (
    AcceptTokensError,
    BoundBelowTruthError,
    DraftShapeError,
    HostSeqLensError,
    IndexMismatchError,
    PageableStagingError,
    PendingInputIdsError,
    PoolSizeError,
    RepeatedRowsError,
    RowCountError,
    RowsOutOfRangeError,
    StaleRowsError,
    StreamPoolError,
    UndeclaredDeviceError,
)
from backend_caps.report.difference import Difference as LockDifference
from backend_caps.report.difference import DifferenceKind
from backend_caps.report.errors import LockFileError, LockSchemaError, LockWriteError
from backend_caps.report.measure_results import GpuResultError
from backend_caps.resolution.choice import Candidate
from backend_caps.resolution.errors import (
    AmbiguousFlagError,
    CompositeCycleError,
    FlagsFileError,
    FlagValueError,
    MissingFlagValueError,
    NoFittingBackendError,
    NoFlagsError,
    NoUseError,
    OverrideError,
    PlanRefusedError,
    PlansDifferError,
    RoleError,
    UnexpandedCompositeError,
    UnfitChoiceError,
    UnknownBackendError,
    UnknownFlagError,
    UnusableBackendError,
    WordsError,
)
from backend_caps.resolution.rules import UnknownRuleSetError
from backend_caps.runtime import (
    AttentionShapeError,
    BackendSwapError,
    ContextTooLongError,
    DisaggregationModeError,
    EngineClosedError,
    EngineFailedError,
    ForeignRequestError,
    HandoverMisfitError,
    ImplementationError,
    MissingDraftModelError,
    OutOfPagesError,
    PageSizeError,
    PoolShapeError,
    PromptError,
    RequestTooLongError,
    SamplingError,
    SharedUseError,
    SpeculationError,
    TwoBatchLengthsError,
    UnfitBackendError,
    UnservedFlagsError,
    UnservedPhaseError,
    UnusedDraftModelError,
)
from backend_caps.runtime.graphs import GraphBucketError, GraphTokenCountError
from backend_caps.runtime.metrics import MetricsPortError
from backend_caps.runtime.model import (
    DraftLayersError,
    DraftMismatchError,
    ModelConfigError,
    ModelFileMissingError,
    ModelFileUnreadableError,
    ModelWeightsError,
    NoHeadError,
    UnsupportedDtypeError,
    UnsupportedHeadError,
    UnsupportedModelError,
)
from backend_caps.runtime.pipeline.errors import ChunkLimitsError
from backend_caps.runtime.speculative.errors import TreeMaskBufferError
from backend_caps.settings.errors import (
    RepeatedSettingError,
    ServerSettingError,
    SettingsFileError,
    SettingValueError,
    UnknownSettingError,
)
from backend_caps.startup.agreement import (
    AgreementDeadlineError,
    ControlGroupError,
    Difference,
    MissingRanksError,
    RankFailedError,
    RanksDifferError,
    UnknownPerRankFlagError,
)
from backend_caps.startup.configure import UnavailableDeviceError
from backend_caps.startup.locked import LockDiffersError
from backend_caps.startup.ranks import JobError

FLAGS = (
    UnknownFlagError(flag="--attention-backends", meant="--attention-backend"),
    AmbiguousFlagError(
        flag="--attention", candidates=("--attention-backend", "--attention-context-parallel-size")
    ),
    FlagValueError(flag="--page-size", value="'large'", expected="a valid integer"),
    MissingFlagValueError(flag="--attention-backend", expected="a value"),
    WordsError(given="--attention-backend my_flash"),
    NoFlagsError(kind="dict"),
    FlagsFileError(path="flags.yaml", cause="it holds a list, or keys that are no text"),
)
NOT_ON_CPU = Problem(
    code="device-unsupported",
    message="backend 'my_flash' takes device cuda; here it is cpu.",
    remedy="Use another backend, or device cuda.",
    actual="cpu",
    needed="cuda",
)
NOT_IN_FLOAT32 = Problem(
    code="dtype-unsupported",
    message="backend 'my_flash' takes dtype bfloat16, float16; here it is float32.",
    remedy="Use another backend, or dtype bfloat16, float16.",
    actual="float32",
    needed="bfloat16, float16",
)
TORN = Problem(
    code="missing-module",
    message="backend 'torn' of torn 0.1.0 (torn_caps:DECLARATION) is not there: no module "
    "'torn_caps' is found.",
    remedy="Correct the entry point of torn, or reinstall it.",
)
BACKENDS = (
    UnknownBackendError(
        name="my_flsh",
        flag="--attention-backend",
        declared=("my_flash", "torch_native"),
        meant="my_flash",
    ),
    UnusableBackendError(
        name="my_flash",
        flag="--attention-backend",
        problem="backend 'my_flash' of my-flash 0.1.0 (my_flash_caps:DECLARATION) is not there: "
        "no module 'my_flash_caps' is found.",
        remedy="Correct the entry point of my-flash, or reinstall it.",
    ),
    RoleError(backend="my_flash", role="draft", slot="--attention-backend", takes=("target",)),
    NoFittingBackendError(
        flag="--attention-backend",
        rejected=(
            Candidate(name="my_flash", reasons=(NOT_ON_CPU, NOT_IN_FLOAT32)),
            Candidate(name="torn", reasons=(TORN,)),
        ),
    ),
    UnfitChoiceError(
        flag="--attention-backend",
        name="my_flash",
        reasons=(NOT_ON_CPU,),
        fitting=("torch_padded", "torch_native"),
    ),
    CompositeCycleError(cycle=("hybrid", "inner", "hybrid")),
    UnexpandedCompositeError(name="hybrid", parts=("flash", "triton")),
    NoUseError(),
)
PLANS = (
    PlanRefusedError(
        code="engine-default",
        problem="the backend for decode is the engine's own choice (no --attention-backend); "
        "nothing is known of it, so it counts as undeclared.",
        remedy="Name it with --attention-backend.",
    ),
    OverrideError(
        name="roles", value="target", expected="a capability that a plan holds: host_seq_lens"
    ),
    PlansDifferError(field="rules", one="sglang-0.5.13", other="sglang-0.5.23"),
    UnknownRuleSetError(name="sglang-0.5.14", known=("sglang-0.5.13", "sglang-0.5.23")),
)
DISCOVERY = (
    StringInsteadOfListError(argument="path", value="plugins"),
    DeadlineError(deadline_s=0),
    RepeatedBackendError(name="my_flash", sources=("my-flash 0.1.0", "by hand")),
    RegistrationsDifferError(
        parent_pid=4711,
        differences=("backend my_flash is my-flash 0.1.0 (ok) there, and nothing here",),
    ),
)
NEW_PLUGINS = (
    PluginNameError(
        name="my-flash",
        problem="it is to name a Python package too",
        expected="up to 30 letters and digits in lower case, with '_' between words",
        meant="my_flash",
    ),
    PluginFolderError(folder="my_flash", problem="it holds README.md and 4 more"),
)
LOCKS = (
    LockFileError(path="backends.lock.json", cause="No such file or directory"),
    LockSchemaError(path="backends.lock.json", schema="'backend-caps/lock@2'"),
    LockWriteError(path="backends.lock.json", cause="No space left on device"),
    LockDiffersError(
        path="backends.lock.json",
        differences=(
            LockDifference(
                kind=DifferenceKind.STRICTER,
                subject="plan",
                field="host_seq_lens",
                before="none",
                after="exact",
            ),
        ),
    ),
)
RANKS = (
    RanksDifferError(
        differences=(
            Difference(
                field="backend my_flash",
                values=(("my-flash 0.1.0", (0, 1, 3)), ("my-flash 0.2.0", (2,))),
            ),
        ),
        hosts={0: "node-a", 2: "node-b"},
    ),
    RankFailedError(
        failures=(("LockFileError: lock file 'backends.lock.json' cannot be read", (2,)),),
        hosts={2: "node-b"},
    ),
    MissingRanksError(
        round="the comparison of fingerprints",
        seconds=60.0,
        deadline_s=60.0,
        absent=(2,),
        silent=(),
        gave_up=(),
        hosts={},
        cause="Timed out waiting 60000ms for recv operation to complete",
    ),
    ControlGroupError(problem="it talks over cuda:nccl"),
    AgreementDeadlineError(deadline_s=0),
    UnknownPerRankFlagError(names=("tp",), known=("tp_size", "pool_size", "draft")),
)
RELAY = (
    UnavailableDeviceError(device="xpu"),
    UndeclaredDeviceError(device="my_npu", declared=("cpu", "cuda")),
    StreamPoolError(device="cuda", drawn=64),
    PoolSizeError(pool_size=1),
    HostSeqLensError(value=True),
    DraftShapeError(field="topk", value=0, expected="at least 1"),
    AcceptTokensError(),
)
DEBUG = (
    RowsOutOfRangeError(operation="publish", rows=(64,), pool_size=64),
    RepeatedRowsError(operation="publish", rows=(3,)),
    RowCountError(operation="publish", field="seq_lens", shape=(2,), expected=(3,)),
    StaleRowsError(field="bonus_tokens", rows=(3,), writer="stash"),
    IndexMismatchError(req_pool_indices=(3, 1), req_pool_indices_cpu=(1, 3)),
    PendingInputIdsError(pending="3 decode rows hold sentinels"),
    PageableStagingError(device="cuda"),
    BoundBelowTruthError(rows=(3,), bounds=(12,), seq_lens=(13,)),
)
ENGINES = (
    UnknownEngineError(name="sgl", known=("sglang", "vllm")),
    EngineNotInstalledError(engine="sglang"),
    EngineSourceError(engine="sglang", source="checkouts/sglang", problem="has no sglang/ in it"),
)
LIVE = (
    AttnBackendsError(kind="ServerArgs"),
    RuntimeContextError(cause="config namespace 'exec' not published"),
)

MODELS = (
    ModelFileMissingError(folder="llama", expected="config.json", present=("readme.md",)),
    ModelFileUnreadableError(
        path="llama/config.json", expected="a JSON object", reason="line 3 is no JSON"
    ),
    UnsupportedModelError(
        path="llama/config.json", key="model_type", value="gpt2", supported="llama"
    ),
    ModelConfigError(
        path="llama/config.json", key="hidden_size", value="64", expected="a whole number"
    ),
    ModelWeightsError(folder="llama", missing=("model.norm.weight",)),
    UnsupportedDtypeError(dtype="float16", supported=("float32", "bfloat16")),
    DraftMismatchError(folder="draft", key="vocab_size", value=32000, expected=128256),
    DraftLayersError(num_layers=3, target_folder="llama", available=2),
    NoHeadError(folder="my/draft", missing="fc.weight"),
    UnsupportedHeadError(folder="eagle3", kind="EAGLE3", found="d2t"),
)
ENGINE = (
    UnservedFlagsError(flags=("--tp-size 2",)),
    UnservedPhaseError(phase="decode", served=("prefill",)),
    SharedUseError(phase="decode", backends=("full", "linear")),
    ImplementationError(
        backend="my_flash",
        implementation="my_flash.backend:MyFlash",
        problem="No module named 'my_flash'",
    ),
    UnfitBackendError(problems=("backend 'my_flash' takes dtype bfloat16; here it is float32.",)),
    ContextTooLongError(context_length=8192, max_position_embeddings=2048),
    AttentionShapeError(backend="MyFlash", layer_id=0, shape=(5, 4, 16), expected=(5, 64)),
    EngineClosedError(),
    EngineFailedError(cause="CUDA out of memory"),
    PageSizeError(conflict="flash takes multiples of 16, triton takes 1"),
    PoolShapeError(field="max_requests", value=0),
    GraphBucketError(
        kind="single_token_decode", batch_size=4, num_tokens=8, expected="one token a request"
    ),
    GraphTokenCountError(num_tokens=16384, largest=8192),
    SpeculationError(flag="--speculative-num-steps", value=0, expected="at least 1"),
    MissingDraftModelError(algorithm="EAGLE"),
    UnusedDraftModelError(path="my/draft", algorithm="NGRAM"),
    DisaggregationModeError(asked="generate", mode="decode", expected="null"),
    HandoverMisfitError(
        problems=(
            "its draft model is none, and the engine has 7d8cee01f36f",
            "its keys are torch.float16 instead of torch.bfloat16",
        ),
    ),
    BackendSwapError(
        reasons=("'my_flash' needs host_seq_lens 'exact', and the relay was made for 'none'",)
    ),
    TwoBatchLengthsError(
        mode="verify",
        batch_size=8,
        field="seq_lens_cpu",
        wanted="where its tree mask is cut, and the sum of each half's lengths",
    ),
    TreeMaskBufferError(
        size=65536, batch_size=8, num_queries=8, max_context_len=2048, seq_lens_sum=None
    ),
    ChunkLimitsError(chunked_prefill_size=8, granularity=16),
    MetricsPortError(address="127.0.0.1", port=9000, problem="Address already in use"),
    ModelDtypeError(dtype="float16"),
    NotMeasuredError(
        problem="the plan was resolved with --tp-size 8, which this engine does not do; one "
        "process and a KV cache of bfloat16, float16 or float32 were expected. Resolve a plan "
        "without them."
    ),
    GpuResultError(path="benchmarks/results/gpu.json", problem="Field required"),
    OutputError(problem="No space left on device"),
    NoBackendNamedError(phases=("decode",), declared=("torch_native", "torch_padded")),
)
DRY_RUNS = (
    CannotRunError(
        reasons=(
            ("fa3", "no installed plugin declares backend 'fa3' (--attention-backend)"),
            ("my_flash", "No module named 'my_flash'"),
        ),
        device="sim",
        would_run=("torch_native", "torch_padded"),
    ),
    StandInError(
        name="torch_native",
        problem="with it host_seq_lens is exact, and was decided to be none",
        would_run=("torch_padded",),
    ),
    DryStartError(device="cpu", problem="its constructor raised RuntimeError: no such kernel"),
    JobError(
        rank="1",
        size="4",
        what="a group of all ranks within 60 s",
        cause="Timed out after 61 seconds waiting for clients. 3/4 clients joined",
    ),
)
REQUESTS = (
    PromptError(problem="holds no token", expected="at least one was expected"),
    RequestTooLongError(
        num_prompt_tokens=4000, max_new_tokens=200, limit=4096, limited_by="the context"
    ),
    SamplingError(field="top_p", value=1.5, expected="above 0 and at most 1"),
    ForeignRequestError(number=7),
    OutOfPagesError(wanted=3, free=2, pages=64),
)
SIMULATOR = (
    ScheduleError(text="starve"),
    NestedSimulationError(running="lazy", asked="random:3"),
    SimDeviceError(
        operator="aten::index_select", site="scheduler.py:90", reason="index out of range"
    ),
    UnsupportedOperatorError(
        operator="aten::resize_", site="my_flash.py:12", reason="it changes a tensor's shape"
    ),
    CaptureError(
        action="aten::_local_scalar_dense",
        site="my_flash.py:40",
        expected="only device work was expected",
    ),
    GraphStateError(action="replay", held="no capture"),
    DirtyRunError(schedule="lazy", findings=("race on block 12",)),
)
KIT = (
    UnknownSubjectError(name="my_flesh", declared=("my_flash", "torch_native"), meant="my_flash"),
    UncheckableError(
        backend="my_both", problem="it is a composite: check its parts, my_flash, torch_native"
    ),
    UnknownCheckError(name="mirror", known=("numerics", "mirror-absent")),
    UnknownCaseError(backend="my_flash", case="mirror-absent"),
    BaselineError(problem="ValueError: no kernel for heads of 80"),
    EvidenceError(backend="my_flash", problem="No space left on device"),
)

SETTINGS = (
    SettingsFileError(path="backend-caps.yaml", cause="No such file or directory"),
    UnknownSettingError(
        place="backend-caps.yaml:3", name="polcy", known=("path", "policy"), meant="policy"
    ),
    SettingValueError(
        place="BACKEND_CAPS_POLICY",
        name="policy",
        value="'strictt'",
        expected="'strict', 'warn' or 'quiet'",
    ),
    RepeatedSettingError(place="backend-caps.yaml:7", name="policy", first_line=3),
    ServerSettingError(
        place="backend-caps.yaml:9",
        fault=UnknownFlagError(flag="--atention-backend", meant="--attention-backend"),
    ),
)

BY_OCCASION: tuple[tuple[str, str, tuple[BackendCapsError, ...]], ...] = (
    ("Server flags", "Raised while flags are read.", FLAGS),
    ("Backends in use", "Raised when it is settled who runs what.", BACKENDS),
    ("Plans", "Raised by `resolve` and by what is done with plans.", PLANS),
    (
        "Settings",
        "Raised by `Settings.load`, and by every command that takes `--config`.",
        SETTINGS,
    ),
    (
        "Discovery",
        "Raised by `discover` and `Registry.of` for what a caller gives them.",
        DISCOVERY,
    ),
    ("New plugins", "Raised by `backend-caps new-plugin`.", NEW_PLUGINS),
    (
        "Locks",
        "Raised where `backend-caps lock` writes a file, and `verify` and `diff` read one.",
        LOCKS,
    ),
    (
        "Engines",
        "Raised where an engine's source is named and cannot be read, as by `--engine`.",
        ENGINES,
    ),
    (
        "SGLang's live backends",
        "Raised by `backend_caps.engines.sglang.decide_needs_cpu_seq_lens`.",
        LIVE,
    ),
    ("FutureMap", "Raised when a FutureMap is configured or made.", RELAY),
    ("FutureMap, at each call", "Raised with `debug=True`; the ids are checked always.", DEBUG),
    (
        "Ranks",
        "Raised by `configure(group=...)`, on every rank.",
        RANKS,
    ),
    (
        "A model's folder",
        "Raised by what loads a model: `backend_caps.runtime.model.load_llama`, `load_eagle`.",
        MODELS,
    ),
    ("The engine", "Raised when an engine is made, and by `backend-caps generate`.", ENGINE),
    ("A dry run", "Raised by `backend-caps dry-run`.", DRY_RUNS),
    ("A request", "Raised by `Engine.submit` and by what it is made of.", REQUESTS),
    ("The simulated accelerator", "Raised by the device `sim`.", SIMULATOR),
    (
        "The conformance kit",
        "Raised by `backend-caps check` and `pytest --backend-caps`.",
        KIT,
    ),
)
"""Every error, by the occasion on which it is raised."""
