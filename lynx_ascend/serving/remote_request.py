"""What D's scheduler knows of a request whose prompt KV comes from a prefill instance."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_ascend.serving.metadata import Progress
from lynx_ascend.serving.options import RequestOptions
from lynx_ascend.serving.transfer_params import RemotePrompt
from lynx_ascend.speculation.decoder import SpecDecoder


@dataclass
class RemoteRequest:
    """A request whose prompt KV comes from a prefill instance, until it is an ordinary request."""

    request_id: str
    decoder: SpecDecoder
    source: RemotePrompt
    options: RequestOptions
    drafts: bool  # may draft: the load is reported with the anchor
    random: bool  # its tokens are sampled at random
    first: int | None  # the token to hand over
    pulled: bool = False  # the transfer has been ordered
    residual_ready: bool = False
    progress: Progress | None = None  # of the transfer; None: the anchor is not there
    residual_at: float | None = None  # when the last byte was there, by the policy's clock
    waited: bool = False  # was told to skip a draft step
    overrun: float = 0.0  # seconds by which its last draft step delayed the verify pass
    failure: str | None = None

    @property
    def live(self) -> bool:
        """True while the transfer or the verification is under way."""
        return not self.decoder.finished

    @property
    def may_wait(self) -> bool:
        """True while the Residual is on its way: to draft meanwhile is a choice."""
        return self.drafts and not self.residual_ready and self.failure is None
