"""What judges the rest: a model, prompts, an in-process engine and the 8-bit reference."""
