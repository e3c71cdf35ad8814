"""The engine that streams blocks' weights to the device: which stay, what is copied when, and the devices.

This room knows torch only: nothing of ComfyUI and nothing of cache-dit. Without ComfyUI it is used like this, here on
the device without hardware; ``offload_device(torch.device("cuda"))`` gives a real one:

>>> import torch
>>> import dev  # from the folder of a checkout: makes it importable as "pack"
>>> from pack.offload.block_weights import BlockWeights
>>> from pack.offload.devices.virtual import VirtualDevice
>>> from pack.offload.streamer import BlockStreamer
>>> from pack.stack.call import StackCall
>>> from pack.stack.outlook import Outlook
>>> model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(6)]).requires_grad_(False)
>>> weights = {index: BlockWeights(model[index]) for index in range(2, 6)}  # blocks 0 and 1 stay on the device
>>> engine = BlockStreamer(weights, total=6, device=VirtualDevice(), prefetch=1)
>>> x = torch.randn(3, 8)
>>> call = StackCall(model, streaming=engine, outlook=Outlook(next_head=None))  # no call follows this one
>>> result = call.run(lambda: model(x))
>>> torch.equal(result.output, model(x))
True
>>> result.ran, result.copies.streamed == 4 * weights[2].bytes_to_copy, result.copies.wasted
([0, 1, 2, 3, 4, 5], True, {})
"""
