"""A block's weights in and out of a buffer, bit for bit, and the block as it was afterwards."""

from __future__ import annotations

import pytest
import torch
from pack.offload.block_weights import ALIGNMENT, AttributeWhileRunning, BlockWeights
from pack.offload.devices.synchronous import SynchronousDevice
from pack.offload.streamer import BlockStreamer
from pack.stack.outlook import Outlook

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.float8_e4m3fn]


class Flattened(torch.Tensor):
    """A wrapper subclass with two inner tensors, as quantised tensors are."""

    @staticmethod
    def __new__(cls, data, scale):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)
        wrapper._data, wrapper._scale = data, scale
        return wrapper

    def __tensor_flatten__(self):
        return ["_data", "_scale"], "context"

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        assert context == "context"
        return Flattened(inner["_data"], inner["_scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return Flattened(args[0]._data, args[0]._scale)
        raise NotImplementedError(function)


class Opaque(torch.Tensor):
    """A subclass that says nothing about what is inside."""


def load(weights: BlockWeights):
    buffer = torch.full((weights.size,), 0xFF, dtype=torch.uint8)
    for destination, source in weights.copy_pairs(buffer):
        destination.copy_(source)
    return weights.device_entries(buffer, lambda tensor: tensor)


def block_of(**tensors):
    block = torch.nn.Module()
    for name, tensor in tensors.items():
        block.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    return block


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(dtype):
    values = torch.randn(7, 5).mul(20).to(dtype)
    block = block_of(weight=values.clone(), odd=values[0, :3].clone())
    weights = BlockWeights(block)
    with weights.installed(load(weights)):
        for name, expected in (("weight", values), ("odd", values[0, :3])):
            actual = getattr(block, name)
            assert actual.dtype == dtype
            assert torch.equal(actual.view(torch.uint8), expected.contiguous().view(torch.uint8))
            assert isinstance(actual, torch.nn.Parameter)


def test_strides_are_kept():
    block = block_of(conv=torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last), turned=torch.randn(3, 6).t())
    weights = BlockWeights(block)
    originals = {name: (p, p.stride()) for name, p in block.named_parameters()}
    with weights.installed(load(weights)):
        for name, (original, stride) in originals.items():
            assert torch.equal(getattr(block, name), original)
            assert getattr(block, name).stride() == stride


def test_sizes_are_aligned_and_bytes_are_those_of_the_tensors():
    weights = BlockWeights(block_of(a=torch.zeros(3), b=torch.zeros(300, dtype=torch.bfloat16), c=torch.zeros(0)))
    assert weights.size == ALIGNMENT + 3 * ALIGNMENT
    assert weights.bytes_to_copy == 12 + 600


def test_shared_tensors_are_copied_once_and_stay_shared():
    block = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    block[1].weight = block[0].weight
    weights = BlockWeights(block)
    assert weights.bytes_to_copy == 4 * 4 * 4
    with weights.installed(load(weights)):
        assert block[0].weight is block[1].weight


def test_buffers_and_parameters_beside_layers_are_included():
    block = torch.nn.Module()
    block.inner = torch.nn.Linear(4, 4)
    block.modulation = torch.nn.Parameter(torch.randn(1, 4), requires_grad=False)
    block.register_buffer("scale", torch.randn(2))
    block.register_buffer("absent", None)
    originals = dict(block.state_dict())
    entries = load(weights := BlockWeights(block))
    with weights.installed(entries):
        inside = [id(tensor) for tensor in (*block.parameters(), *block.buffers())]
        assert set(inside) == {id(entry) for entry in entries}
        assert not isinstance(block._buffers["scale"], torch.nn.Parameter)
        assert all(torch.equal(tensor, originals[name]) for name, tensor in block.state_dict().items())


def test_wrapper_subclasses_travel_as_their_inner_tensors():
    inner, scale = torch.randint(-128, 127, (6, 6), dtype=torch.int8), torch.randn(6)
    block = block_of(weight=Flattened(inner, scale))
    weights = BlockWeights(block)
    assert weights.packs_fully
    assert weights.bytes_to_copy == 36 + 24
    with weights.installed(load(weights)):
        assert type(block.weight) is Flattened
        assert isinstance(block.weight, torch.nn.Parameter)
        assert torch.equal(block.weight._data, inner)
        assert torch.equal(block.weight._scale, scale)
        assert block.weight._data is not inner


def test_unknown_subclasses_are_moved_whole():
    block = block_of(weight=torch.randn(3).as_subclass(Opaque), plain=torch.randn(3))
    weights = BlockWeights(block)
    assert not weights.packs_fully
    assert (weights.unpacked_bytes, weights.bytes_to_copy) == (3 * 4, 6 * 4)
    buffer = torch.zeros(weights.size, dtype=torch.uint8)
    moved = []
    entries = weights.device_entries(buffer, lambda tensor: moved.append(type(tensor)) or tensor)
    assert moved == [type(block.weight)]
    with weights.installed(entries):
        assert isinstance(block.weight, Opaque)


def test_effective_tensors_replace_originals_only_while_the_block_runs():
    block = block_of(weight=torch.zeros(3))
    original = block.weight
    weights = BlockWeights(block, {id(original): torch.ones(3)})
    with weights.installed(load(weights)):
        assert torch.equal(block.weight, torch.ones(3))
    assert block.weight is original


@pytest.mark.parametrize("exception", [None, RuntimeError("x"), KeyboardInterrupt()])
def test_the_block_is_as_before_after_success_and_error(exception):
    block = torch.nn.Linear(3, 3)
    block.flag = "rest"
    parameters, attributes = dict(block._parameters), dict(vars(block))
    weights = BlockWeights(
        block, while_running=[AttributeWhileRunning(block, "flag", "run"), AttributeWhileRunning(block, "new", 1)]
    )

    def use():
        with weights.installed(load(weights)):
            assert (block.flag, block.new) == ("run", 1)
            if exception is not None:
                raise exception

    if exception is None:
        use()
    else:
        with pytest.raises(type(exception)):
            use()
    assert all(block._parameters[name] is parameters[name] for name in parameters)
    assert vars(block) == attributes


def test_host_memory_a_loader_has_replaced_is_not_kept():
    block = block_of(weight=torch.zeros(3))
    weights = BlockWeights(block)
    block.weight.data = torch.ones(3)
    with weights.installed(load(weights)):
        assert torch.equal(block.weight, torch.ones(3))


def test_works_in_inference_mode():
    with torch.inference_mode():
        block = torch.nn.Linear(3, 3)
    weights = BlockWeights(block)
    buffer = torch.zeros(weights.size, dtype=torch.uint8)
    with torch.inference_mode():
        for destination, source in weights.copy_pairs(buffer):
            destination.copy_(source)
        x = torch.randn(2, 3)
        expected = block(x)
        with weights.installed(weights.device_entries(buffer, lambda tensor: tensor)):
            assert torch.equal(block(x), expected)


def test_same_memory_is_told_from_equal_values():
    block = torch.nn.Linear(4, 4).requires_grad_(False)
    weights = BlockWeights(block)
    with torch.no_grad():
        block.weight.mul_(2)
    assert weights.is_same_memory(BlockWeights(block))
    assert not weights.is_same_memory(BlockWeights(block, {id(block.weight): block.weight.clone()}))
    block.weight.data = block.weight.data.clone()
    assert weights.is_same_memory(BlockWeights(block))  # looked up when copied: both see the new memory
    other = torch.nn.Linear(4, 4).requires_grad_(False)
    assert not weights.is_same_memory(BlockWeights(other))


@pytest.mark.parametrize("inference", [False, True])
def test_entries_ask_for_gradients_where_the_originals_do(inference):
    """torch's matmul takes another way for weights that do, with other last bits."""
    block = torch.nn.Linear(4, 4)
    block.bias.requires_grad_(False)
    buffer = torch.empty(BlockWeights(block).size, dtype=torch.uint8)
    with torch.inference_mode(inference):
        entries = BlockWeights(block).device_entries(buffer, lambda tensor: tensor)
        assert [entry.requires_grad for entry in entries] == [True, False]
        assert not any(entry.is_inference() for entry in entries)
        baked = BlockWeights(block, {id(block.weight): block.weight.detach().clone()})
        assert [entry.requires_grad for entry in baked.device_entries(buffer, lambda t: t)] == [False, False]


def test_a_buffer_made_in_inference_mode_can_be_used_outside_of_it():
    block = torch.nn.Linear(4, 4)
    weights = BlockWeights(block)
    with torch.inference_mode():
        buffer = torch.empty(weights.size, dtype=torch.uint8)
        for destination, host in weights.copy_pairs(buffer):
            destination.copy_(host)
    given = torch.ones(1, 4)
    with torch.no_grad():
        expected = block(given)
        with weights.installed(weights.device_entries(buffer, lambda tensor: tensor)):
            assert torch.equal(block(given), expected)


def test_streamed_products_are_those_of_the_plain_weights():
    """A strided input, as joint attention hands it on: here torch's two ways to multiply differ."""
    layer = torch.nn.Linear(256, 256)
    given = torch.randn(2, 24, 256, generator=torch.Generator().manual_seed(0))[:, :8]
    weights = BlockWeights(layer)
    streamer = BlockStreamer({0: weights}, 1, SynchronousDevice(torch.device("cpu")), 0)
    with torch.inference_mode():
        expected = layer(given)
        streamer.begin_call(Outlook())
        assert torch.equal(streamer.run_block(0, layer, (given,), {}), expected)
        streamer.end_call()
