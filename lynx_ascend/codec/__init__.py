"""The codecs: parameters, the definition in PyTorch, payload layout, tables and the compiled ops."""
