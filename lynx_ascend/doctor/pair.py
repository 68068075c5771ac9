"""A running pair of servers: reachable, alike, and a real prompt handed over by P and fetched as D would fetch it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lynx_ascend.doctor import gain
from lynx_ascend.doctor.finding import Finding, ok, problem, warning
from lynx_ascend.doctor.installation import minor
from lynx_ascend.doctor.link import Link, LinkError, fetch, is_local, round_trip
from lynx_ascend.doctor.servers import Server, ServerError
from lynx_ascend.serving.releases import VLLM
from lynx_ascend.serving.transfer_params import RemotePrompt, TransferParamsError
from lynx_ascend.speculation.break_even import Choice
from lynx_ascend.transport.tls import TlsConfig

SHORT = 32  # tokens of the prompts that time a decode step
STEPS = 32
LYNX_P = 'start P with --kv-transfer-config \'{"kv_connector": "LynxConnector", "kv_role": "kv_producer"}\''
HELD = "P frees this prompt when its lease is over"


@dataclass
class Pair:
    """The servers under examination, and what was measured so far.

    Args:
        tokens: of the prompt that is fetched, fewer where the model takes fewer. timeout: seconds for each step.
        tls: files to fetch it with, where P serves by TLS.

    Attributes:
        link, tpot, choices: measured link, seconds of D's decode step, expected gains; None or empty before.
    """

    prefill: Server
    decode: Server
    proxy: Server | None
    tokens: int
    timeout: float
    tls: TlsConfig | None = None
    link: Link | None = None
    tpot: float | None = None
    choices: list[Choice] = field(default_factory=list)

    def examine(self) -> Iterator[Finding]:
        """Every finding; what depends on a step that failed is left out."""
        answers = [self._version(name, server) for name, server in (("P", self.prefill), ("D", self.decode))]
        yield from (finding for _, finding in answers)
        if not all(reached for reached, _ in answers):
            return
        model, longest, found = self._model()
        yield from found
        if model is None:
            return
        yield from self._fetch(model, longest)
        if longest > SHORT + 1 + STEPS:
            yield self._decode_step(model)
        if self.proxy is not None:
            yield self._through(self.proxy, model)
        if self.link is not None and self.tpot is not None:
            self.choices = gain.choices(self.link, self.tpot, longest)
            yield from gain.findings(self.choices)

    def _version(self, name: str, server: Server) -> tuple[bool, Finding]:
        """Whether the server answers, and what is to be said of it."""
        try:
            version = server.version()
        except ServerError as error:
            return False, problem(name, str(error), "is the server up, and the URL that of vLLM's API?")
        if minor(version) not in VLLM:
            remedy = f"install vLLM {' or '.join(VLLM)}"
            return True, problem(name, f"{server.url}: vLLM {version} is not supported", remedy)
        return True, ok(name, f"{server.url}: vLLM {version}")

    def _model(self) -> tuple[str | None, int, list[Finding]]:
        """A model that both serve, and the longest text that both take."""
        remedy = "serve the same model under the same name on both"
        try:
            ours, theirs = self.prefill.models(), self.decode.models()
        except ServerError as error:
            return None, 0, [problem("model", str(error), remedy)]
        model = next((name for name in ours if name in theirs), None)
        if model is None:
            return None, 0, [problem("model", f"P serves {_names(ours)}, D serves {_names(theirs)}", remedy)]
        lengths = ours[model], theirs[model]
        longest = min((length for length in lengths if length is not None), default=self.tokens + 1)
        if lengths[0] != lengths[1]:
            found = f"{model}: max_model_len is {lengths[0]} on P, {lengths[1]} on D"
            return model, longest, [warning("model", found, "set the same --max-model-len on both")]
        return model, longest, [ok("model", f"{model}, max_model_len {lengths[0]}")]

    def _fetch(self, model: str, longest: int) -> Iterator[Finding]:
        """From the request to P to the last byte of its KV."""
        tokens = min(self.tokens, longest - 1)
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        try:
            answer = self.prefill.complete(model, _prompt(tokens), 1, kv_transfer_params=params)
            prompt = RemotePrompt.from_params(answer.kv_transfer_params)
        except ServerError as error:
            yield problem("handover", str(error), "see P's log")
            return
        except TransferParamsError as error:
            yield problem("handover", f"P speaks for another connector: {error}", LYNX_P)
            return
        if prompt is None:
            yield problem("handover", "P answers without kv_transfer_params: it hands nothing over", LYNX_P)
            return
        where = f"{prompt.remote_host}:{prompt.remote_port}"
        yield ok("handover", f"P holds {prompt.remote_tokens} tokens at {where}")
        if is_local(prompt.remote_host) and not is_local(self.decode.host):
            remedy = "set kv_connector_extra_config.host on P to an address that D reaches it by"
            yield warning("KV address", f"P hands out {where}, which on {self.decode.host} is D itself", remedy)
        try:
            trip = round_trip(prompt.remote_host, prompt.remote_port, self.timeout)
        except LinkError as error:
            remedy = "open the port from here and from D, or set kv_connector_extra_config.host and .port on P"
            yield problem("KV port", f"no connection to {error}", f"{remedy}; {HELD}")
            return
        yield ok("KV port", f"{where}: round trip {trip * 1e3:.3g} ms")
        try:
            self.link = fetch(prompt, self.timeout, self.tls)
        except LinkError as error:
            yield problem("KV link", str(error), f"see P's log; {HELD} at the latest")
            return
        yield ok(
            "KV link",
            f"{self.link.total / 1e6:.3g} MB of {self.link.tokens} tokens in {self.link.seconds:.3g} s: "
            f"{self.link.bandwidth / 1e9:.3g} Gbit/s from P to here, P's encoder included",
        )

    def _decode_step(self, model: str) -> Finding:
        """Two answers of D of different length; the first call warms up whatever is cold."""
        remedy = "see D's log"
        try:
            self.decode.complete(model, _prompt(SHORT), 1)
            first, more = (self.decode.time(model, _prompt(SHORT), count) for count in (1, 1 + STEPS))
        except ServerError as error:
            return problem("decode step", str(error), remedy)
        if more <= first:
            found = f"{1 + STEPS} tokens took {more:.3g} s, one took {first:.3g} s"
            return warning("decode step", f"cannot be told: {found}", "try again while D is idle")
        self.tpot = (more - first) / STEPS
        return ok("decode step", f"{self.tpot * 1e3:.3g} ms, mean of {STEPS} on D")

    def _through(self, proxy: Server, model: str) -> Finding:
        """An answer of the whole; a failed transfer fails it, unless D's kv_load_failure_policy is recompute."""
        try:
            answer = proxy.complete(model, _prompt(SHORT), 2)
        except ServerError as error:
            return problem("proxy", str(error), "see the logs of the proxy and of D")
        if not answer.choices:
            return problem("proxy", f"{proxy.url}: an answer without choices", "see the logs of the proxy and of D")
        return ok("proxy", f"{proxy.url}: answers")


def _prompt(tokens: int) -> list[int]:
    """Token ids that any vocabulary has; what they say does not matter."""
    return [100 + i % 800 for i in range(tokens)]


def _names(models: dict[str, int | None]) -> str:
    return ", ".join(models) or "none"
