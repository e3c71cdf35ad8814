"""One block's weights: where they live on the host and how they are laid out in a device buffer.

At rest every module holds its original host tensors. While the block runs, device tensors stand in their
place in ``_parameters`` and ``_buffers``; afterwards the very same original objects are put back. No
placeholders and no ``.data`` assignment, so ``state_dict()`` is right at every moment outside a forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

ALIGNMENT = 256
MISSING = object()
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
TensorTable = dict[str, Any]  # a module's own _parameters or _buffers


def is_opaque(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` cannot be packed into a buffer: a subclass that takes no part in torch's flatten protocol, as
    GGUF packs have them, or one made of other subclasses. It can only be moved whole, by its own ``to``."""
    return type(tensor) not in PLAIN_TYPES and _flattened(tensor) is None


def _flattened(tensor: torch.Tensor) -> tuple[Sequence[str], Any] | None:
    """Return the names of a subclass's inner tensors, all plain, and what it is rebuilt with; ``None`` if opaque."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return None
    names, context = tensor.__tensor_flatten__()
    return (names, context) if all(type(getattr(tensor, name)) in PLAIN_TYPES for name in names) else None


@dataclass(frozen=True)
class AttributeWhileRunning:
    """A module attribute that has to hold ``value`` while the block runs (for example a cast flag)."""

    module: torch.nn.Module
    name: str
    value: Any


@dataclass(frozen=True)
class _Place:
    """One entry of a module's ``_parameters`` or ``_buffers``."""

    table: TensorTable
    name: str
    is_parameter: bool
    source: int


@dataclass(frozen=True)
class _Piece:
    """The place of one plain tensor in the packed buffer. The tensor itself is looked up when it is copied, so
    that host memory a loader has since replaced is not kept alive."""

    inner_name: str | None
    offset: int
    size: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]

    def host(self, source: torch.Tensor) -> torch.Tensor:
        return (source if self.inner_name is None else getattr(source, self.inner_name)).detach()

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        flat = buffer[self.offset : self.offset + self.size].view(self.dtype)
        return flat.as_strided(self.shape, self.strides, flat.storage_offset())


class BlockWeights:
    """The effective weights of one block, ready to be copied into a slot and put into the block.

    Args:
        block: the transformer block; its parameters and buffers are read now, and must stay on the host.
        effective: host tensors that replace originals of the same ``id()`` (weights with LoRA baked in).
        while_running: attributes to set on modules of the block for that time.
    """

    def __init__(
        self,
        block: torch.nn.Module,
        effective: Mapping[int, torch.Tensor] | None = None,
        while_running: Iterable[AttributeWhileRunning] = (),
    ) -> None:
        self._while_running = tuple(while_running)
        self._places: list[_Place] = []
        self._sources: list[torch.Tensor] = []
        self._grads: list[bool] = []
        self._collect(block, effective or {})
        self._layouts: list[_SourceLayout | None] = []
        self.size = self._lay_out()
        self.bytes_to_copy = sum(_copied_bytes(*pair) for pair in zip(self._sources, self._layouts, strict=True))

    def _collect(self, block: torch.nn.Module, effective: Mapping[int, torch.Tensor]) -> None:
        source_of: dict[int, int] = {}
        for module in block.modules():
            tables: tuple[tuple[TensorTable, bool], ...] = ((module._parameters, True), (module._buffers, False))
            for table, is_parameter in tables:
                for name, tensor in table.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in source_of:
                        source_of[id(tensor)] = len(self._sources)
                        self._sources.append(effective.get(id(tensor), tensor))
                        self._grads.append(tensor.requires_grad and id(tensor) not in effective)
                    self._places.append(_Place(table, name, is_parameter, source_of[id(tensor)]))

    def _lay_out(self) -> int:
        """Give every inner tensor an aligned span; return the packed size in bytes."""
        offset = 0
        for source in self._sources:
            layout, offset = _SourceLayout.of(source, offset)
            self._layouts.append(layout)
        return offset

    def copy_pairs(self, buffer: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return (destination view into ``buffer``, host tensor) pairs; ``buffer`` has at least ``size`` bytes."""
        return [
            (piece.view(buffer), piece.host(source))
            for source, layout in zip(self._sources, self._layouts, strict=True)
            if layout is not None
            for piece in layout.pieces
        ]

    def device_entries(
        self, buffer: torch.Tensor, to_device: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the block's tensors as views into ``buffer``, one for each place; shared ones are one object.

        ``to_device`` moves the tensors that cannot be packed (subclasses without the flatten protocol).
        """
        with torch.inference_mode(False):
            return self._entries(
                [
                    to_device(source) if layout is None else layout.rebuild(source, buffer)
                    for source, layout in zip(self._sources, self._layouts, strict=True)
                ]
            )

    def host_entries(self) -> list[torch.Tensor]:
        """Return the block's effective tensors as they are on the host, one for each place."""
        return self._entries(self._sources)

    def _entries(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        entries: dict[tuple[int, bool], torch.Tensor] = {}
        for place in self._places:
            key = (place.source, place.is_parameter)
            if key not in entries:
                entries[key] = _as_entry(tensors[place.source], place.is_parameter, self._grads[place.source])
        return [entries[place.source, place.is_parameter] for place in self._places]

    def host_tensors(self) -> list[torch.Tensor]:
        """Return the plain host tensors that a load of this block copies from."""
        return [host for _, host in self.copy_pairs(torch.empty(self.size, dtype=torch.uint8, device="meta"))]

    def is_same_memory(self, other: BlockWeights) -> bool:
        """Whether ``other`` copies from the very same places of main memory, whatever they hold now."""
        return self._memory() == other._memory()

    def _memory(self) -> list[tuple]:
        packed = [(tensor.data_ptr(), tensor.dtype, tensor.shape) for tensor in self.host_tensors()]
        unpacked = zip(self._sources, self._layouts, strict=True)
        return packed + [(id(source),) for source, layout in unpacked if layout is None]

    @property
    def unpacked_bytes(self) -> int:
        """Device bytes that the block takes beside its slot while it runs: those of its opaque tensors."""
        pairs = zip(self._sources, self._layouts, strict=True)
        return sum(_copied_bytes(source, layout) for source, layout in pairs if layout is None)

    @property
    def packs_fully(self) -> bool:
        """Whether every tensor lives in the buffer, so that the entries made for one buffer can be kept and reused."""
        return all(layout is not None for layout in self._layouts)

    @contextmanager
    def installed(
        self, entries: Sequence[torch.Tensor], attributes: Sequence[AttributeWhileRunning] | None = None
    ) -> Iterator[None]:
        """Put ``entries`` (of :meth:`device_entries` or :meth:`host_entries`) into the block for the length of the
        context, with ``attributes`` set (by default those that a running block needs)."""
        wanted = self._while_running if attributes is None else attributes
        originals = [place.table[place.name] for place in self._places]
        before = [one.module.__dict__.get(one.name, MISSING) for one in wanted]
        try:
            for one in wanted:
                one.module.__dict__[one.name] = one.value
            for place, entry in zip(self._places, entries, strict=True):
                place.table[place.name] = entry
            yield
        finally:
            for place, original in zip(self._places, originals, strict=True):
                place.table[place.name] = original
            for one, value in zip(wanted, before, strict=True):
                if value is MISSING:
                    one.module.__dict__.pop(one.name, None)
                else:
                    one.module.__dict__[one.name] = value


@dataclass(frozen=True)
class _SourceLayout:
    """How one source tensor is packed: plain tensors as one piece, wrapper subclasses as their inner tensors."""

    pieces: tuple[_Piece, ...]
    context: Any

    @classmethod
    def of(cls, source: torch.Tensor, offset: int) -> tuple[_SourceLayout | None, int]:
        """Return the layout from byte ``offset`` on and the next free offset; ``None`` for opaque tensors."""
        if type(source) in PLAIN_TYPES:
            piece, following = _piece(None, source, offset)
            return cls((piece,), None), following
        flattened = _flattened(source)
        if flattened is None:
            return None, offset
        names, context = flattened
        pieces = []
        following = offset
        for name in names:
            piece, following = _piece(name, getattr(source, name), following)
            pieces.append(piece)
        return cls(tuple(pieces), context), following

    def rebuild(self, source: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        if self.pieces[0].inner_name is None:
            return self.pieces[0].view(buffer)
        inner = {piece.inner_name: piece.view(buffer) for piece in self.pieces}
        subclass: Any = type(source)  # torch does not declare its flatten protocol
        return subclass.__tensor_unflatten__(inner, self.context, source.size(), source.stride())


def _piece(name: str | None, tensor: torch.Tensor, offset: int) -> tuple[_Piece, int]:
    size = tensor.numel() * tensor.element_size()
    strides = tensor.stride() if _is_dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
    following = offset + -(-size // ALIGNMENT) * ALIGNMENT
    return _Piece(name, offset, size, tensor.dtype, tensor.shape, tuple(strides)), following


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements fill one block of memory without gaps or overlaps, in any dimension order."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True


def _copied_bytes(source: torch.Tensor, layout: _SourceLayout | None) -> int:
    if layout is None:
        return source.numel() * source.element_size()
    return sum(piece.size for piece in layout.pieces)


def _as_entry(tensor: torch.Tensor, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    """Return the entry for a module's table. A parameter asks for gradients where the original did, and is no
    inference tensor, though nobody trains here: torch chooses between matrix products by that, which differ in their
    last bits (``should_fold`` in its matmul)."""
    if not is_parameter or isinstance(tensor, torch.nn.Parameter):
        return tensor
    possible = tensor.is_floating_point() and not tensor.is_inference()
    return torch.nn.Parameter(tensor, requires_grad=requires_grad and possible)
