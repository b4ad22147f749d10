"""One example of every error, so that its sentence can be read before it is met."""

from __future__ import annotations

from backend_caps.atlas.build import AtlasError
from backend_caps.cli.output import CommandError
from backend_caps.compatibility.archives import ArchiveError
from backend_caps.compatibility.releases import ReleaseError
from backend_caps.compatibility.sources import SourceError
from backend_caps.discovery.registry import DiscoveryError
from backend_caps.engines.reading import EngineError
from backend_caps.extras import MissingExtraError
from backend_caps.insight.errors import InsightError
from backend_caps.relay import RelayError
from backend_caps.report.lock import LockError
from backend_caps.resolution.errors import (
    FlagsError,
    FlagValueError,
    PlanRefusedError,
    ResolutionError,
)
from backend_caps.settings.sources import SettingsError
from backend_caps.startup.errors import (
    Difference,
    MissingRanksError,
    RankFailedError,
    RanksDifferError,
    StartupError,
)
from docs.tools.error_examples.conformance import KIT, SIMULATOR
from docs.tools.error_examples.occasion import Occasion
from docs.tools.error_examples.runtime import ENGINE, MODELS, REQUESTS

__all__ = ["BY_OCCASION", "Occasion"]

FLAGS = Occasion(
    title="Server flags",
    told="Raised while flags are read, and by `resolve` for an override.",
    examples=(FlagValueError(flag="--page-size", value="'large'", expected="a valid integer"),),
    coded=(FlagsError,),
)
BACKENDS = Occasion(
    title="Backends in use",
    told="Raised when it is settled who runs what, and by `resolve`.",
    coded=(ResolutionError,),
)
PLANS = Occasion(
    title="Plans",
    told="Raised by `resolve` under the policy `strict`.",
    examples=(
        PlanRefusedError(
            code="engine-default",
            problem="the backend for decode is the engine's own choice (no --attention-backend); "
            "nothing is known of it, so it counts as undeclared.",
            remedy="Name it with --attention-backend, or follow its choice: --engine sglang with "
            "--model-config and --fact device_name.",
        ),
    ),
)
SETTINGS = Occasion(
    title="Settings",
    told="Raised by `Settings.load`, and by every command that takes `--config`.",
    coded=(SettingsError,),
)
DISCOVERY = Occasion(
    title="Discovery",
    told="Raised by `discover` and `Registry.of` for what a caller gives them.",
    coded=(DiscoveryError,),
)
EXTRAS = Occasion(
    title="Extras",
    told="Raised by the import or the command that needs an extra; it is an `ImportError` too.",
    examples=(
        MissingExtraError(part="backend_caps.relay", extra="relay", modules=("torch", "numpy")),
    ),
)
LOCKS = Occasion(
    title="Locks",
    told="Raised where `backend-caps lock` writes a file, where `verify` and `diff` read one, and "
    "by `configure(lock=...)`.",
    coded=(LockError,),
)
ENGINES = Occasion(
    title="Engines",
    told="Raised where an engine's source is named and cannot be read, as by `--engine`.",
    coded=(EngineError,),
)
FITS = Occasion(
    title="Plugins and releases",
    told="Raised by `fits`, and by a test of `pytest --backend-caps-fits`, where a plugin or an "
    "engine cannot be found or read.",
    coded=(SourceError, ReleaseError, ArchiveError),
)
ATLAS = Occasion(
    title="Atlas",
    told="Raised by `atlas build`, and by `ask` where it reads a folder of the atlas.",
    coded=(AtlasError,),
)
RELAY = Occasion(
    title="FutureMap",
    told="Raised when a FutureMap is configured or made, and by its calls.",
    coded=(RelayError,),
)
RANKS = Occasion(
    title="Starting, and ranks",
    told="Raised by `configure(group=...)`, on every rank, and where a server starts.",
    examples=(
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
            failures=(("LockError: lock file 'backends.lock.json' cannot be read", (2,)),),
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
    ),
    coded=(StartupError,),
)
COMMANDS = Occasion(
    title="Commands",
    told="Raised by the command that its occasion names; `no-output` by every one.",
    coded=(CommandError,),
)
INSIGHTS = Occasion(
    title="Runs",
    told="Raised by `generate`, `explain --measure`, `dry-run` and `trace`, besides those of the "
    "engine.",
    coded=(InsightError,),
)

BY_OCCASION = (
    FLAGS,
    BACKENDS,
    PLANS,
    SETTINGS,
    DISCOVERY,
    EXTRAS,
    LOCKS,
    ENGINES,
    FITS,
    ATLAS,
    RELAY,
    RANKS,
    MODELS,
    ENGINE,
    REQUESTS,
    INSIGHTS,
    SIMULATOR,
    KIT,
    COMMANDS,
)
"""Every error, by the occasion on which it is raised, as the page has them."""
