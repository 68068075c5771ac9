"""The plugin and the start-up check: registered once, inert elsewhere, and every unmet condition named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lynx_ascend.serving import compat
from lynx_ascend.serving.checks import UnsupportedError, check_config, unusable_methods

pytestmark = pytest.mark.portable


def supported() -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=1),
        model_config=SimpleNamespace(use_mla=False),
        speculative_config=None,
        lora_config=None,
        use_v2_model_runner=False,
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )


def test_supported_engine_passes() -> None:
    check_config(supported())


def test_methods_that_the_heads_do_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    config = supported()
    for npu, allowed in ((False, {64, 80, 128, 256}), (True, {64, 128})):
        monkeypatch.setattr(compat, "on_ascend", lambda npu=npu: npu)
        for head_dim in (6, 64, 80, 128, 256, 4096):
            config.model_config.get_head_size = lambda head_dim=head_dim: head_dim
            unusable = unusable_methods(config)
            assert unusable.keys() == (set() if head_dim in allowed else {"pair"})
            assert all(f"head_dim {head_dim} is n" in why for why in unusable.values())


def test_every_unmet_condition_is_named_at_once() -> None:
    config = supported()
    config.parallel_config = SimpleNamespace(pipeline_parallel_size=2, tensor_parallel_size=4)
    config.model_config.use_mla = config.use_v2_model_runner = True
    config.speculative_config = config.lora_config = object()
    config.cache_config.cache_dtype = "fp8"
    with pytest.raises(UnsupportedError) as caught:
        check_config(config)
    for named in (
        "pipeline",
        "tensor",
        "speculative_config",
        "enable_lora",
        "VLLM_USE_V2_MODEL_RUNNER=0",
        "MLA",
        "fp8",
    ):
        assert named in str(caught.value)


def test_a_vllm_that_nobody_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.99")
    with pytest.raises(UnsupportedError, match=r"vLLM 0\.99: install one of 0\.23, 0\.32"):
        check_config(supported())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"recompute_scheduler_enable": True}, "recompute_scheduler_enable"),
        ({"SLO_limits_for_dynamic_batch": 50}, "SLO_limits_for_dynamic_batch"),
        ({"rejection_sampler_config": {"enable_entropy_verify": True}}, "enable_entropy_verify"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_of_vllm_ascend_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], named: str
) -> None:
    config = supported()
    config.additional_config, config.kv_transfer_config = options, SimpleNamespace(is_kv_consumer=True)
    check_config(config)  # elsewhere nobody reads them
    monkeypatch.setattr(compat, "on_ascend", lambda: True)
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.23")
    with pytest.raises(UnsupportedError, match=named):
        check_config(config)
    config.additional_config = {"recompute_scheduler_enable": False, "SLO_limits_for_dynamic_batch": -1}
    check_config(config)
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.32")
    with pytest.raises(UnsupportedError, match=r"vllm-ascend for vLLM 0\.32"):
        check_config(config)


def test_registering_twice_changes_nothing() -> None:
    from vllm.config import SchedulerConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from lynx_ascend.serving import plugin
    from lynx_ascend.serving.connector import LynxConnector

    plugin.register()
    wrapped = SchedulerConfig.get_scheduler_cls
    plugin.register()
    assert SchedulerConfig.get_scheduler_cls is wrapped
    assert KVConnectorFactory.get_connector_class_by_name("LynxConnector") is LynxConnector


def test_the_mixin_goes_in_front_of_any_scheduler_once() -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from lynx_ascend.serving.scheduler_mixin import LynxSchedulerMixin, with_mixin

    for scheduler in (Scheduler, AsyncScheduler):
        mixed = with_mixin(scheduler)
        assert mixed.__mro__[1:3] == (LynxSchedulerMixin, scheduler)
        assert with_mixin(mixed) is mixed and with_mixin(scheduler) is mixed


def test_entry_point_is_installed() -> None:
    from importlib.metadata import entry_points

    (point,) = (p for p in entry_points(group="vllm.general_plugins") if p.name == "lynx_ascend")
    assert point.value == "lynx_ascend.serving.plugin:register"
