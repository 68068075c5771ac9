"""The names of the twin's rules, which its errors begin with."""

from __future__ import annotations

import re
from pathlib import Path

TWIN = Path(__file__).parents[2] / "ascend_kernels" / "twin"


def rules_of_launches() -> set[str]:
    """All that a kernel can break; `launch` is about its arguments."""
    sources = [path.read_text(encoding="utf-8") for path in TWIN.rglob("*.[ch]*")]
    return {rule for text in sources for rule in re.findall(r'(?:require|fail)\([^;]*?"([a-z]+)",', text)} - {"launch"}
