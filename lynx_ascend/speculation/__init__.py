"""Speculation without I/O: the SpecDecoder, its acceptance rules, the policies of drafting, and the latency model."""
