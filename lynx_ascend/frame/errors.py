"""The one error that a bad frame raises, whatever is wrong with it."""

from __future__ import annotations


class FrameError(ValueError):
    """A frame, or a set of frames, that must not be used.

    Attributes:
        field: the header field, payload part ("gamma_min", "mu", ...) or property ("size") that is wrong.
        page: page index, where the header could be read that far. stream: name of the stream, likewise.
    """

    def __init__(self, field: str, problem: str, *, page: int | None = None, stream: str | None = None) -> None:
        self.field, self.problem, self.page, self.stream = field, problem, page, stream
        place = [part for part in (stream and f"{stream} stream", None if page is None else f"page {page}") if part]
        super().__init__(f"{', '.join(place)}: {field}: {problem}" if place else f"{field}: {problem}")
