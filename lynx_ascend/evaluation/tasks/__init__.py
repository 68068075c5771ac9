"""Tasks with right answers on every method's cache: MMLU-Pro, a needle in a haystack, QMSum."""
