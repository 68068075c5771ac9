"""The vLLM plugin: makes LynxConnector known and puts the scheduler mixin in place, in every process."""

from __future__ import annotations

from typing import Any

CONNECTOR = "LynxConnector"


def register() -> None:
    """Entry point of `vllm.general_plugins`. vLLM calls it once a process or more: it may run again without effect.

    Nothing changes for an engine without LynxConnector: the mixin steps aside there, and the runner is not patched.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR in KVConnectorFactory._registry:
        return
    KVConnectorFactory.register_connector(CONNECTOR, "lynx_ascend.serving.connector", CONNECTOR)
    _wrap_scheduler_choice()


def _wrap_scheduler_choice() -> None:
    """Whatever scheduler class the configuration names, the engine gets it with LynxSchedulerMixin in front."""
    from vllm.config import SchedulerConfig

    choose = SchedulerConfig.get_scheduler_cls

    def get_scheduler_cls(self: Any) -> type[Any]:
        from lynx_ascend.serving.scheduler_mixin import with_mixin

        return with_mixin(choose(self))

    SchedulerConfig.get_scheduler_cls = get_scheduler_cls
