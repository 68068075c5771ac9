"""Benchmarks, one command of `lynx-ascend bench` each. Timing, yardsticks and machine facts are shared."""
