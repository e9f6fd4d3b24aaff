"""The step-by-step harness over the real model, and prompts of our own for it."""

from __future__ import annotations

from typing import Any

from espalier.runtime.config import EngineConfig
from espalier.runtime.loading import Model, load_model
from espalier.runtime.scheduler.sampling_rows import Vocabulary
from tests.harness import Harness
from tests.native_kernels import Kernels

TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "To bake a simple bread you need",
    "Q: What is 17 + 25?\nA:",
    "The three laws of motion state that",
    "import numpy as np\n\n# normalise the rows\n",
    "Dear Ms Ortega,\n\nThank you for",
    "In 1969 the first people",
    '{"name": "Ada", "born":',
    "A haiku about rain:\n",
    "Breaking news: scientists have",
    "1, 1, 2, 3, 5, 8,",
    "Translate to Spanish: good morning =",
    "The difference between a list and a tuple is",
    "Ingredients:\n- 2 eggs\n- ",
    "She opened the old wooden door and",
    "SELECT name, age FROM users WHERE",
    "The mitochondria is",
    "Roses are red, violets are",
    "Step 1: boil the water. Step 2:",
    "My favourite season is autumn because",
    "The train to Kyoto leaves at",
    "<html>\n  <body>\n    <h1>",
    "Water freezes at",
    "If x = 3 and y = 4 then x * y =",
    "The last time I saw him he was",
    "An apple a day",
    "The largest planet in the solar system",
    "class Stack:\n    def __init__(self):\n",
    "Once the bill has been signed,",
    "Monday, Tuesday, Wednesday,",
    "Photosynthesis turns light into",
    "He looked at the map and said:",
    "The chess opening that begins with e4 e5",
    "for i in range(10):\n    print(",
    "A good friend is someone who",
    "The recipe calls for 250 g of",
    "Yesterday the stock market",
    "In summary, the experiment shows that",
]


def vocabulary(model: Model) -> Vocabulary:
    return Vocabulary(
        width=model.config.vocab_size,
        size=model.tokenizer.vocab_size,
        eos_ids=model.tokenizer.eos_ids,
        visible_bytes=model.tokenizer.visible_bytes,
    )


def load_as(kernels: Kernels) -> Model:
    """The default model, for torch's kernels in float32 or for native ones."""
    if kernels == "torch":
        return load_model(EngineConfig(dtype="float32", kernels="torch"))
    return load_model(EngineConfig(dtype=kernels, kernels="native"))


def harness(model: Model, **options: Any) -> Harness:
    return Harness(model.config, model.weights, vocabulary(model), **options)
