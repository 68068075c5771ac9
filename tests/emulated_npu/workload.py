"""What vllm-ascend and CPU vLLM are both given: prompts and sampling parameters, and what came back, as JSON.

python workload.py MODEL OUT.json runs it on CPU vLLM 0.23.0, which must be what `python` has; nothing of the project is
imported then.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

BLOCK_SIZE = 128
LENGTH = 32
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n-1) + fibonacci(n-2)\ndef factorial(n):",
    "List of planets and their distance from the Sun, in order, with comments: Mercury, 57.9 million km; Venus,",
    "Once upon a time there was a little girl who lived in a village near the forest. Whenever she went out, she wore "
    "a red riding cloak, so everyone in the village called her Little Red Riding Hood. One day she asked her mother",
]
ITEMS = " ".join(f"Item {i}: the price of article number {i * 37 % 101} is {i * i % 97} dollars." for i in range(1, 40))
LONG = 600  # tokens of ITEMS, prefilled in three chunks


def run(llm: Any) -> dict[str, Any]:
    """Every case on a vllm.LLM with prefix caching; returns what each gave, ready for JSON."""
    import vllm
    from vllm import SamplingParams
    from vllm.platforms import current_platform

    tokens = llm.get_tokenizer().encode(ITEMS)[:LONG]
    assert len(tokens) == LONG
    long = {"prompt_token_ids": tokens}
    extended = {"prompt_token_ids": [*tokens, *llm.get_tokenizer().encode(" In total")]}

    def generate(prompts: list[Any], **parameters: Any) -> dict[str, Any]:
        sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": LENGTH, **parameters})
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        result: dict[str, Any] = {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs],
        }
        if sampling.logprobs is not None:
            result["logprobs"] = [
                [{token: entry.logprob for token, entry in step.items()} for step in output.outputs[0].logprobs]
                for output in outputs
            ]
        return result

    return {
        "vllm": vllm.__version__,
        "device": current_platform.device_type,
        "single": generate(PROMPTS[:1]),
        "batch": generate(PROMPTS),
        "chunked": generate([*PROMPTS[:3], long]),  # the three decode while the long one is prefilled
        "prefix": generate([extended, PROMPTS[0]]),  # its first 512 tokens are in the cache
        "penalties": generate(
            PROMPTS, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, min_tokens=20
        ),
        "bias": generate(PROMPTS[:3], logit_bias={28: -4.0, 30: 7.0}, stop_token_ids=[198]),
        "logprobs": generate(PROMPTS[:2], logprobs=3, max_tokens=8),
        "sampled": generate(PROMPTS, temperature=0.8, top_k=40, top_p=0.9, seed=7),
        "sampled again": generate(PROMPTS, temperature=0.8, top_k=40, top_p=0.9, seed=7),
        "sampled otherwise": generate(PROMPTS, temperature=0.8, top_k=40, top_p=0.9, seed=8),
    }


def main(model: str, out: str) -> None:
    from vllm import LLM

    llm = LLM(
        model,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        block_size=BLOCK_SIZE,
        enforce_eager=True,
        seed=0,
    )
    with open(out, "w") as file:
        json.dump(run(llm), file)


if __name__ == "__main__":
    os.environ.update(
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_PLUGINS="",
    )
    main(*sys.argv[1:])
