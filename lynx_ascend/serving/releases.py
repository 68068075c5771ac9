"""The releases that Lynx serves on, for those who must know them without importing vLLM."""

VLLM = ("0.23", "0.32")  # major and minor number
VLLM_ASCEND = "0.23"
