import torch
from doubles import mock_comfy
from doubles.toy_stacks import WIDTH, WanModel

apply = mock_comfy.import_adapter("pack_on_mock")


def test_smoke():
    model = mock_comfy.BaseModel(WanModel(0, mock_comfy.wrap_diffusion_model))
    patcher = mock_comfy.ModelPatcher(model)
    conds = [torch.randn(1, 3, WIDTH), torch.randn(1, 3, WIDTH)]
    sig = torch.linspace(1, 0, 9)
    ref = mock_comfy.Guider(patcher, conds).sample(torch.ones(1, 6, WIDTH), sig)
    from pack_on_mock.comfy_adapter.offload_settings import OffloadSettings

    off = apply.apply_layerwise_offload(patcher, OffloadSettings(resident_blocks=3))
    out = mock_comfy.Guider(off, conds).sample(torch.ones(1, 6, WIDTH), sig)
    assert torch.equal(ref, out)
    print(apply.last_run(off)[0])
    from pack_on_mock.dbcache.settings import DBCacheSettings

    both = apply.apply_dbcache(off, DBCacheSettings(preset="custom", threshold=0.5, warmup_steps=2, bn=1))
    out = mock_comfy.Guider(both, conds, layout=((0,), (1,))).sample(torch.ones(1, 6, WIDTH), sig)
    print(apply.last_run(both)[0])
