"""What `lynx-ascend bench` measures: commands in `app.py`; rounds, memcpy and machine facts are for all of them."""
