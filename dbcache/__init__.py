"""DBCache bound to ComfyUI's blocks: it decides which calls skip the middle of the stack, and stands in for it.

The counting of steps, the step masks and some of the calibrators are cache-dit's; :mod:`.cache_dit` is the only module
of the pack that imports it, lazily. Nothing here knows ComfyUI or the offload engine. Without ComfyUI, with this pack
importable as ``pack``, on blocks that take and return one hidden state:

>>> import torch
>>> from pack.dbcache.calls import CallInfo
>>> from pack.dbcache.gate import CallGate
>>> from pack.dbcache.rules import DBCacheSettings
>>> from pack.dbcache.session import DBCacheSession
>>> from pack.stack.call import StackCall
>>> from pack.stack.layout import HiddenState, PlacedSegment, Segment, StackLayout
>>> model, x = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5))), torch.ones(1, 4, 8)
>>> segment = Segment((HiddenState("hidden", argument="input", position=0),))
>>> rules = DBCacheSettings(preset="custom", fn=1, bn=1, warmup_steps=2).rules(blocks=5)
>>> session = DBCacheSession(rules, steps=6, layout=StackLayout((PlacedSegment(segment, 0, 5),)))
>>> for step in range(6):
...     gate = CallGate(session, CallInfo(step=step, sigma=1 - step / 6, last=step == 5))
...     with torch.no_grad():
...         result = StackCall(list(model), gate).run(lambda: model(x))
...     print(result.ran, result.outcome.reason)
[0, 1, 2, 3, 4] warm-up
[0, 1, 2, 3, 4] warm-up
[0, 4] threshold: 0 < 0.08 (hidden)
[0, 4] threshold: 0 < 0.08 (hidden)
[0, 1, 2, 3, 4] cap: 2 cached steps in a row
[0, 1, 2, 3, 4] last step
>>> session.close()
"""
