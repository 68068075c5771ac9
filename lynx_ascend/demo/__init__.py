"""What `lynx-ascend demo` runs: two servers and a proxy, a client, tables and timelines."""
