"""Errors of reading flags, of who runs what, and of plans."""

from __future__ import annotations

from backend_caps.capability.status import Problem
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
    OtherEngineError,
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
from docs.tools.error_examples.occasion import Occasion

_NOT_ON_CPU = Problem(
    code="device-unsupported",
    message="backend 'my_flash' takes device cuda; here it is cpu.",
    remedy="Use another backend, or device cuda.",
    actual="cpu",
    needed="cuda",
)
_NOT_IN_FLOAT32 = Problem(
    code="dtype-unsupported",
    message="backend 'my_flash' takes dtype bfloat16, float16; here it is float32.",
    remedy="Use another backend, or dtype bfloat16, float16.",
    actual="float32",
    needed="bfloat16, float16",
)
_TORN = Problem(
    code="missing-module",
    message="backend 'torn' of torn 0.1.0 (torn_caps:DECLARATION) is not there: no module "
    "'torn_caps' is found.",
    remedy="Correct the entry point of torn, or reinstall it.",
)
FLAGS = Occasion(
    title="Server flags",
    told="Raised while flags are read.",
    examples=(
        UnknownFlagError(flag="--attention-backends", meant="--attention-backend"),
        AmbiguousFlagError(
            flag="--attention",
            candidates=("--attention-backend", "--attention-context-parallel-size"),
        ),
        FlagValueError(flag="--page-size", value="'large'", expected="a valid integer"),
        MissingFlagValueError(flag="--attention-backend", expected="a value"),
        OtherEngineError(program="vllm serve", owner="vllm", known="sglang-0.5.13"),
        WordsError(given="--attention-backend my_flash"),
        NoFlagsError(kind="dict"),
        FlagsFileError(path="flags.yaml", cause="it holds a list, or keys that are no text"),
    ),
)
BACKENDS = Occasion(
    title="Backends in use",
    told="Raised when it is settled who runs what.",
    examples=(
        UnknownBackendError(
            name="my_flsh",
            flag="--attention-backend",
            declared=("my_flash", "torch_native"),
            meant="my_flash",
        ),
        UnusableBackendError(
            name="my_flash",
            flag="--attention-backend",
            problem="backend 'my_flash' of my-flash 0.1.0 (my_flash_caps:DECLARATION) is not "
            "there: no module 'my_flash_caps' is found.",
            remedy="Correct the entry point of my-flash, or reinstall it.",
        ),
        RoleError(backend="my_flash", role="draft", slot="--attention-backend", takes=("target",)),
        NoFittingBackendError(
            flag="--attention-backend",
            rejected=(
                Candidate(name="my_flash", reasons=(_NOT_ON_CPU, _NOT_IN_FLOAT32)),
                Candidate(name="torn", reasons=(_TORN,)),
            ),
        ),
        UnfitChoiceError(
            flag="--attention-backend",
            name="my_flash",
            reasons=(_NOT_ON_CPU,),
            fitting=("torch_padded", "torch_native"),
        ),
        CompositeCycleError(cycle=("hybrid", "inner", "hybrid")),
        UnexpandedCompositeError(name="hybrid", parts=("flash", "triton")),
        NoUseError(),
    ),
)
PLANS = Occasion(
    title="Plans",
    told="Raised by `resolve` and by what is done with plans.",
    examples=(
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
    ),
)
