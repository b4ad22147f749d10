# ruff: noqa: D102 - the methods are those of a device module, and their names its names
"""A device module whose streams do nothing and write down what they were asked for.

Tensors stay on the CPU and work runs at once; what is tested is who waits for whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from backend_caps.relay import DeviceStreams, DeviceTraits
from backend_caps.relay.streams import EventLike, StreamLike, StreamModule

Log = list[str]


@dataclass(eq=False)
class FakeEvent:
    """An event that logs."""

    log: Log

    def record(self, stream: StreamLike, /) -> None:
        assert isinstance(stream, FakeStream)
        self.log.append(f"publish event recorded on {stream.name}")

    def wait(self, stream: StreamLike, /) -> None:
        assert isinstance(stream, FakeStream)
        self.log.append(f"{stream.name} waits for publish event")


@dataclass
class FakeStream:
    """A stream that logs; two of one name are one handle."""

    name: str
    log: Log = field(compare=False)

    def wait_event(self, _event: EventLike, /) -> None:
        self.log.append(f"{self.name} waits for publish event")

    def wait_stream(self, stream: StreamLike, /) -> None:
        assert isinstance(stream, FakeStream)
        self.log.append(f"{self.name} waits for {stream.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")


class FakeModule:
    """A device module: `names` are the handles that its pool hands out, in turns."""

    def __init__(self, names: tuple[str, ...] = ("copy",)) -> None:
        self.log: Log = []
        self.names = names
        self.drawn = 0
        self.current = FakeStream("schedule", self.log)

    def Event(self) -> FakeEvent:  # noqa: N802 - torch's name
        return FakeEvent(self.log)

    def Stream(self, _device: torch.device, /) -> FakeStream:  # noqa: N802 - torch's name
        name = self.names[self.drawn % len(self.names)]
        self.drawn += 1
        return FakeStream(name, self.log)

    def current_stream(self, _device: torch.device, /) -> FakeStream:
        return self.current

    @contextmanager
    def stream(self, stream: StreamLike, /) -> Iterator[None]:
        assert isinstance(stream, FakeStream)
        before, self.current = self.current, stream
        self.log.append(f"on {stream.name}")
        try:
            yield
        finally:
            self.current = before
            self.log.append(f"back on {before.name}")

    def synchronize(self, device: torch.device, /) -> None:
        self.log.append(f"host waits for device {device}")


class StreamOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Write down which of torch's operators run, and on which of a module's streams."""

    def __init__(self, module: FakeModule) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.module = module

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Note the stream and the name, and go on."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        beside = kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,))
        line = f"{self.module.current.name}: {name}{' beside the host' if beside else ''}"
        self.module.log.append(line)
        return func(*args, **kwargs)


class FakeStreams(DeviceStreams):
    """Streams and pinned memory of a CPU that claims to have them."""

    def __init__(
        self, module: FakeModule, taken: tuple[StreamLike, ...] = (), device: str = "cpu"
    ) -> None:
        self.module = module
        traits = DeviceTraits(has_streams=True, has_pinned_memory=True)
        super().__init__(device, traits, taken=taken)
        self.num_pinned = 0
        self.kept: list[Tensor] = []

    def find_module(self) -> StreamModule:
        return cast("StreamModule", self.module)  # it has no graphs, which no relay asks for

    def empty_pinned(self, num_rows: int) -> Tensor:
        self.num_pinned += 1
        return torch.full((num_rows,), -1)

    def keep_alive(self, tensor: Tensor) -> None:
        self.kept.append(tensor)
