"""What a fault put into one of this project's own kernels is, and what must catch it.

decode_mutants.py and encode_mutants.py list them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

VALUES = "values"  # caught by comparing what was written with the CPU's bytes, on launches that break no rule
OVERLAP = "timeline"  # right bytes, but pipes wait for each other where they need not


@dataclass(frozen=True)
class Mutant:
    """`edits` of `file` (old text, new text) make a wrong `kernel` (decode or encode).

    `caught`: VALUES, OVERLAP, or what the TwinError says, from the rule on: a regular expression.
    """

    kernel: str
    name: str
    caught: str
    file: str
    edits: tuple[tuple[str, str], ...]

    def apply(self, folder: Path) -> None:
        """Edit the copy in `folder`. AssertionError where an old text is not there exactly once: a stale mutant."""
        path = folder / self.file
        source = path.read_text(encoding="utf-8")
        for old, new in self.edits:
            found = source.count(old)
            assert found == 1, f"{self.file} has {found} times, not once: {old!r}"
            source = source.replace(old, new)
        path.write_text(source, encoding="utf-8")
