"""Whether SGLang copies lengths to the host in every step, by its own code.

Of a release are executed: the function that chooses a worker for an algorithm, the worker's setup
of its draft's backends, its list of them, what each backend's class and constructor say of
`needs_cpu_seq_lens`, and `decide_needs_cpu_seq_lens`. From this package's interpreter comes which
classes its registry and its factory of drafts construct; of its readers of classes, of rules and of
flags, nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from backend_caps.engines.sglang import arguments
from backend_caps.engines.sglang.construction import Constructed, Runner
from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.uncertainty import has_unknown
from backend_caps.engines.source.values import ClassValue, Instance, Native, Raised, Unknown
from tests.upstream.sglang_source import (
    BACKENDS,
    SPECULATION,
    Bag,
    NotComparableError,
    Source,
    Value,
    sliced,
)
from tests.upstream.sglang_wheel import RuntimeContext, load_overlap_utils

_COMMON = f"{SPECULATION}draft_worker_common"
_CONFIG = "sglang.srt.configs.model_config.ModelConfig"
_MACHINE = {
    "hip": None,
    "is_xpu": False,
    "is_out_of_tree": lambda: False,
    "is_translating": False,
    "is_last_rank": True,
}
"""What the code asks of the machine: CUDA, and no stage of a pipeline after this one."""


class Recording(arguments._Arguments):  # noqa: SLF001 - its runs are recorded
    """The interpreter, which keeps what it made of the last command line."""

    last: Recording
    server_args: Native
    config: Native
    final: Mapping[str, Native]
    target: Constructed | None

    def backends(
        self, args: Native, config: Native, values: Mapping[str, Native]
    ) -> dict[str, Constructed]:
        """Keep the arguments, the model's configuration and the target's backend."""
        Recording.last = self
        self.server_args, self.config, self.final = args, config, values
        self.target = self._built(self._runner(args, config, values))
        return super().backends(args, config, values)

    def construct(
        self, cls: ClassValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Keep a backend's arguments."""
        made = super().construct(cls, args, named)
        if isinstance(made, Constructed):
            made.attributes["given"] = (tuple(args), dict(named))
        return made

    def draft_runner(self, name: str | None) -> Runner:
        """Return a draft's runner; `name` is the backend that its worker names."""
        config = self.call(
            self.attribute(self.found(_CONFIG), "from_server_args"),
            self.server_args,
            model_path=self.final["speculative_draft_model_path"],
            model_revision=self.final["speculative_draft_model_revision"],
            is_draft_model=True,
        )
        args, own = self.server_args, name or self.final["speculative_draft_attention_backend"]
        if isinstance(args, Instance) and name is not None:  # where it goes with the arguments
            args = Instance(args.cls, {**args.attributes})
            args.attributes["speculative_draft_attention_backend"] = own
        return self._runner(args, config, self.final, draft_attention_backend=own)

    def built(self, runner: Runner) -> Constructed | None:
        """Return the backend that a runner constructs."""
        return self._built(runner)


@dataclass
class _Server:
    """One server, by its interpreted arguments."""

    run: Recording
    version: str

    def __post_init__(self) -> None:
        final = {
            name: Bag({}, name) if has_unknown(value) else arguments.plain(value)
            for name, value in self.run.final.items()
        }
        both = final["attention_backend"]
        pair = tuple(final[f"{each}_attention_backend"] or both for each in ("prefill", "decode"))
        self.values: dict[str, Value] = {
            **final,
            **_MACHINE,
            "get_attention_backends": lambda: pair,
        }
        self.source = Source(
            self.version,
            self.values,
            {
                "DraftBackendFactory": self._factory,
                "TpModelWorker": self._worker,
                "attention_backends": lambda: pair,
                "get_kv_shard_pool": lambda _: final.get("enable_kv_cache_sharding") or None,
                "DraftWorkerBundle": SimpleNamespace,
                "deepcopy": lambda copied: copied,
                **dict.fromkeys(("_is_cpu", "_is_hip", "_is_npu", "_is_xpu"), False),
            },
        )

    @property
    def answer(self) -> bool:
        """Whether its scheduler copies lengths."""
        overlap_utils = load_overlap_utils(
            self.version,
            context=RuntimeContext(
                enable_two_batch_overlap=self.values["enable_two_batch_overlap"],
                speculative_algorithm=self.values["speculative_algorithm"],
            ),
        )
        decide = overlap_utils.decide_needs_cpu_seq_lens
        slots = tuple(self.slots)
        for each in slots:
            if each is not None and type(each) in {Bag, SimpleNamespace}:
                raise NotComparableError(f"a slot has no backend: {each}")
        takes_arguments = decide.__code__.co_varnames[0] == "server_args"
        first = (Bag(self.values, "server_args"),) if takes_arguments else ()
        answer = decide(*first, slots)
        assert isinstance(answer, bool), answer
        return answer

    @property
    def slots(self) -> Sequence[object]:
        """The backends that the scheduler hands over."""
        target = SimpleNamespace(attn_backend=self._stand_in(self.run.target))
        if self.values["speculative_algorithm"] is None:
            return (target.attn_backend,)
        algorithms = self.source.found(f"{SPECULATION}spec_info", "SpeculativeAlgorithm")
        algorithm = algorithms.from_string(self.values["speculative_algorithm"])
        cls = algorithm.create_worker(Bag(self.values, "server_args"))
        if not isinstance(cls, type):
            raise NotComparableError(f"no worker is known: {cls}")
        worker: Value = object.__new__(cls)
        of_target = SimpleNamespace(model_runner=target)
        own = {"_target_worker": of_target, "target_worker": of_target, "_hosts_draft": True}
        worker.__dict__.update(own, **self._draft(cls))
        if not hasattr(cls, "spec_v2_attn_backends"):
            return (target.attn_backend,)
        return tuple(worker.spec_v2_attn_backends)

    def _draft(self, cls: type) -> Mapping[str, object]:
        """Return a worker's attributes for its draft."""
        init = self.source.init_of(cls)
        assert init is not None, f"{cls} has no constructor"
        made = {
            ast.unparse(call.func)
            for node in ast.walk(init)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self._draft_worker"
            for call in ast.walk(node.value)
            if isinstance(call, ast.Call)
        }
        named = [name for name in made if name.endswith("DraftWorker")]
        if named:
            draft = self.source.found(cls.__module__, named[0])
            return {"_draft_worker": self._set_up(draft)}
        if self.source.defines(_COMMON, "build_draft_tp_worker") and "bundle" in ast.unparse(init):
            build = self.source.found(_COMMON, "build_draft_tp_worker")
            names = build.__code__.co_varnames[: build.__code__.co_kwonlyargcount]
            given: dict[str, object] = {each: Bag(self.values, each) for each in names}
            server_args = SimpleNamespace(**self.values)
            server_args.override = lambda _why, **own: vars(server_args).update(own)
            given["server_args"] = server_args
            defaults = {"attention_backend_override": None, "draft_worker_cls": self._worker}
            given |= {name: own for name, own in defaults.items() if name in names}
            return {"draft_model_runner": build(**given).draft_model_runner}
        if any("TpModelWorker" in name for name in made) or "draft_backend" in ast.unparse(init):
            own = None
            if "draft_backend = " in ast.unparse(init):
                own = self._variable(cls, init, "draft_backend")
            return {"draft_model_runner": self._runner(own)}
        return {}

    def _variable(self, cls: type, init: ast.FunctionDef, name: str) -> Value:
        function = sliced(init, name)
        function.name = "of_variable"
        function.body = [*function.body, ast.Return(ast.Name(name, ast.Load()))]
        run = self.source.run(cls.__module__, "of_variable", function)
        return run(*(Bag(self.values, each.arg) for each in function.args.args))

    def _set_up(self, cls: type) -> object:
        """Make a draft worker, and let it construct its backends."""
        draft: Value = object.__new__(cls)
        runner = self._runner(None)
        steps = self.values["speculative_num_steps"]
        draft.__dict__.update(
            draft_runner_list=[self._runner(None) for _ in range(steps)],
            server_args=Bag(self.values, "server_args"),
            topk=self.values["speculative_eagle_topk"],
            speculative_num_steps=steps,
            seed_dsa_topk_from_draft_extend=False,
            req_to_token_pool=Bag(self.values, "req_to_token_pool"),
            model_runner=runner,
        )
        for name in ("draft_runner", "draft_model_runner"):
            if not isinstance(getattr(cls, name, None), property):
                setattr(draft, name, runner)
        for name in ("_configure_qsa_mtp_index_share", "_init_dsa_index_share_state"):
            setattr(draft, name, lambda: None)
        if hasattr(draft, "_init_draft_attn_backend"):
            draft.draft_attn_backend = draft._init_draft_attn_backend()  # noqa: SLF001 - theirs
        else:
            draft.init_attention_backend()
        return draft

    def _runner(self, name: str | None) -> SimpleNamespace:
        interpreted = self.run.draft_runner(name)
        return SimpleNamespace(
            interpreted=interpreted,
            attn_backend=self._stand_in(self.run.built(interpreted)),
            model_config=Bag({**self.values, "vocab_size": 1}, "model_config"),
            kv_index_translator=Bag(self.values, "kv_index_translator"),
            model=Bag(self.values, "model"),
            device="cuda",
        )

    def _worker(self, *_args: object, **named: object) -> SimpleNamespace:
        """Stand in for the worker of a draft's runner."""
        name = named.get("draft_attention_backend")
        if name is None:
            name = getattr(named["server_args"], "speculative_draft_attention_backend", None)
        assert name is None or isinstance(name, str), name
        return SimpleNamespace(model_runner=self._runner(name), draft_runner=None)

    def _factory(self, *given: Value, **_named: object) -> object:
        """Stand in for SGLang's factory of draft backends, which is interpreted."""
        run = self.run
        runner = next(each for each in given if isinstance(each, SimpleNamespace)).interpreted
        factory = run.found("sglang.srt.speculative.draft_utils.DraftBackendFactory")
        takes = [each.arg for each in factory.lookup("__init__").node.args.args]
        first = (run.server_args, runner) if "server_args" in takes else (runner,)
        counts = (run.final["speculative_eagle_topk"], run.final["speculative_num_steps"])
        made = run.call(factory, *first, *counts)

        def create(name: str) -> object:
            return self._stand_in(run.call(run.attribute(made, f"create_{name}_backend")))

        return SimpleNamespace(
            create_decode_backend=lambda: create("decode"),
            create_draft_extend_backend=lambda: create("draft_extend"),
        )

    def _stand_in(self, made: Native) -> Value:
        """Make a backend that the interpreter constructs of its own class."""
        if made is None:
            return None
        if not isinstance(made, Constructed):
            raise NotComparableError(f"no backend: {made}")
        module, _, name = made.path.rpartition(".")
        assert module.startswith(BACKENDS), made.path
        cls = self.source.found(module, name)
        args, named = made.attributes["given"]
        return cls(*map(self._argument, args), **{k: self._argument(v) for k, v in named.items()})

    def _argument(self, value: Native) -> Value:
        match value:
            case Constructed():
                return self._stand_in(value)
            case list() | tuple():
                return [self._argument(each) for each in value]
            case Runner() | Instance() | Unknown():
                return Bag(self.values, "runner")
        return value


def sglangs_answer(run: Recording, version: str) -> bool:
    """Return whether a server's scheduler copies lengths, as the release decides.

    Raises:
        NotComparableError: its code asks for what has no stand-in.
    """
    try:
        return _Server(run, version).answer
    except (
        *(ValueError, NotImplementedError, AssertionError, TypeError, AttributeError),
        *(Raised, NotFollowedError),
    ) as error:
        raise NotComparableError(f"its code fails here: {error}") from error
