"""Measures one method on one case: real bytes, attention outputs, and the text under teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from lynx_ascend.codec.baselines.method import Context, Decoded, Method
from lynx_ascend.evaluation.cases import CAP, STARTS, Cache, Case, exact_kv
from lynx_ascend.evaluation.fidelity import (
    Reconstruction,
    Visible,
    attention_outputs,
    forced_logits,
    relative_error,
)
from lynx_ascend.evaluation.kv import PromptKV

VERSION = 1  # of what is measured and how: raise it when a row would come out differently


class Agreement(TypedDict):
    """With the exact cache's text. kl: from the exact next-token distribution, mean over the text, nats; top1: share of
    the text that is the most likely token; runs: drafts until the first that differs, of at most 64, for drafts that
    start at each of the text's first 32 tokens; tokens: of the text, which may end in between."""

    kl: float
    top1: float
    runs: list[int]
    tokens: int


class StreamRow(TypedDict):
    """What a receiver has after a stream and those before it. bits: an element, K and V together, everything counted;
    error: of the attention outputs, pooled (vNMSE); layers: the same by layer; text: unless the text was given."""

    bits: float
    error: float
    layers: list[float]
    text: NotRequired[Agreement]


class Row(TypedDict):
    """A method on a case: after its first stream, and after all (the same if it has only one)."""

    first: StreamRow
    all: StreamRow


class Yardstick:
    """What a case's exact cache gives, to which reconstructions are held."""

    def __init__(self, model: Any, case: Case) -> None:
        self._model, self._case = model, case
        self._outputs = attention_outputs(tuple(case["queries"]), exact_kv(case))
        self._text = torch.tensor(case["text"])
        if case["text"]:
            self._log_p = forced_logits(model, [Reconstruction(exact_kv(case))], case["forced"])[0].log_softmax(-1)

    def attention(self, got: Reconstruction) -> tuple[float, list[float]]:
        """The error of the attention outputs, pooled and by layer."""
        outputs = attention_outputs(tuple(self._case["queries"]), got.kv, got.visible)
        by_layer = [relative_error(*pair) for pair in zip(outputs, self._outputs, strict=True)]
        return relative_error(outputs, self._outputs), by_layer

    @torch.inference_mode()
    def agreement(self, got: Reconstruction) -> Agreement:
        """Under teacher forcing, in one pass. The case must have a text of the model's own."""
        log_q = forced_logits(self._model, [got], self._case["forced"])[0].log_softmax(-1)
        same = (log_q.argmax(-1) == self._text).tolist()
        return Agreement(
            kl=float((self._log_p.exp() * (self._log_p - log_q)).sum(-1).mean()),
            top1=sum(same) / len(same),
            runs=[_run(same[start : start + CAP]) for start in range(min(STARTS, len(same)))],
            tokens=len(same),
        )


@torch.inference_mode()
def measure(yardstick: Yardstick, case: Case, method: Method) -> Row:
    """One row."""
    encoded = EncodedCache(case, method)
    first, every = 1, method.num_streams
    row = _stream_row(yardstick, case, encoded, first)
    return Row(first=row, all=row if first == every else _stream_row(yardstick, case, encoded, every))


class EncodedCache:
    """A cache as the streams of a method, by layer, K and V."""

    def __init__(self, cache: Cache, method: Method) -> None:
        layers, self._method = len(cache["key"]), method
        self._elements = cache["key"].numel() + cache["value"].numel()
        self._parts = [
            [
                method.encode(half[layer], Context(layer, layers, is_value, cache["importance"][layer]))
                for layer in range(layers)
            ]
            for half, is_value in ((cache["key"], False), (cache["value"], True))
        ]

    def bits(self, streams: int) -> float:
        """An element, K and V together, of the first `streams` streams' bytes."""
        return 8 * sum(len(data) for half in self._parts for layer in half for data in layer[:streams]) / self._elements

    def decode(self, streams: int) -> Reconstruction:
        """From the first `streams` streams."""
        keys, values = ([self._method.decode(layer[:streams]) for layer in half] for half in self._parts)
        kv = PromptKV(tuple(part.values for part in keys), tuple(part.values for part in values))
        return Reconstruction(kv, _visible(self._method, keys))


def _stream_row(yardstick: Yardstick, case: Case, encoded: EncodedCache, streams: int) -> StreamRow:
    got = encoded.decode(streams)
    error, layers = yardstick.attention(got)
    row = StreamRow(bits=encoded.bits(streams), error=error, layers=layers)
    if case["text"]:
        row["text"] = yardstick.agreement(got)
    return row


def _visible(method: Method, keys: Sequence[Decoded]) -> Visible | None:
    if all(part.kept is None for part in keys) and type(method).visible is Method.visible:
        return None

    def visible(layer: int, query: Tensor, key: Tensor) -> Tensor | None:
        return method.visible(query, key, keys[layer].kept)

    return visible


def _run(same: list[bool]) -> int:
    return same.index(False) if False in same else len(same)
