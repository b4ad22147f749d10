"""A process that SGLang would spawn: it loads SGLang's plugins, and says what came of it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection

from backend_caps_sglang.registration import VARIABLE
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # torch has it there

from tests.upstream.sglang_packages import sglang_packages

_PATIENCE = timedelta(seconds=120)
"""How long one scheduler waits for the other, which may have died."""


@contextmanager
def scheduler_without_plugin(says: str) -> Iterator[None]:
    """Be the first of two schedulers, while the other runs in a process without the plugin.

    Args:
        says: what the other one gives to the first collective.
    """
    store = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    child = get_context("spawn").Process(target=_plain_scheduler, args=(store.port, says))
    child.start()
    dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=_PATIENCE)
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()
        child.join()
    assert child.exitcode == 0


def _plain_scheduler(port: int, says: str) -> None:
    store = TCPStore("127.0.0.1", port, 2)
    dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=_PATIENCE)
    dist.broadcast_object_list([says], src=1)
    dist.barrier()
    dist.destroy_process_group()


def load_in_child(strange: tuple[str, str]) -> list[tuple[bool, list[str]]]:
    """Load SGLang's plugins in a spawned process, twice.

    Args:
        strange: an entry that the parent is said to have registered beside its own, the second
            time.

    Returns:
        Of each time, whether `torch_padded` is registered, and what was logged as an error.
    """
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_load, args=(there, strange))
    child.start()
    there.close()
    found = [here.recv(), here.recv()]
    child.join()
    return found


def _load(answers: Connection, strange: tuple[str, str]) -> None:
    written = json.loads(os.environ[VARIABLE])
    answers.send(_loaded())
    (of_parent,) = written.values()
    of_parent.update([strange])
    os.environ[VARIABLE] = json.dumps(written)
    answers.send(_loaded())


def _loaded() -> tuple[bool, list[str]]:
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    with sglang_packages():
        import_module("sglang.srt.plugins").load_plugins()
        registry = import_module("sglang.srt.layers.attention.attention_registry")
        return "torch_padded" in registry.ATTENTION_BACKENDS, errors.told


class _Errors(logging.Handler):
    """Keeps what is raised out of a plugin."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        raised = record.exc_info[1] if record.exc_info else None
        self.told.append(record.getMessage() if raised is None else str(raised))
