"""Speculation without I/O: the SpecDecoder, its window and acceptance rules, and the latency model."""
