"""What a predicted text is worth on the benchmark's edits, beside lookup in the prompt, replayed without a model.

    python -m scripts.benchmarks.predict MODEL [-k 15] [--costs 3.9,6.8,9.2,8.5,...]

The answers are what a model that follows the instruction writes: the prompt's file with the edit made. MODEL gives the
tokenizer. Tokens per pass and predicted speedup over plain decoding, for drafts of up to k tokens: with the file in the
prompt by lookup alone and with the file predicted as well, and the same where the prompt does not have the file.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.benchmarks.ngram import COSTS, passes_along
from specdec_cli.bench.prompt_set import SHIPPED, read_prompts
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.ngram.predicted import PredictedText
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import ModelSettings

EDITS: Mapping[str, Callable[[str], str]] = {
    "cart.py": lambda text: text.replace(
        "        self.items.append(item)\n",
        '        if item.quantity < 1:\n            raise ValueError("quantity must be at least 1")\n'
        "        self.items.append(item)\n",
    ),
    "ring_push": lambda text: re.sub(r"\b(push|pop)\(", r"ring_\1(", text),
    "workshop": lambda text: text.replace("Saturday 14 June", "Sunday 22 June"),
    "weather.py": lambda text: text.replace(
        "values), 1),\n", 'values), 1),\n        "медиана": statistics.median(values),\n'
    ),
}
"""By a word of the prompt: what is to be done to its file."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("-k", type=int, default=15)
    parser.add_argument("--costs", type=lambda text: [float(part) for part in text.split(",")], default=COSTS)
    options = parser.parse_args()
    print(f"{'edit':12} {'file in the prompt':>27} {'not in the prompt':>27}")
    print(f"{'':12} {'lookup':>13} {'--predict':>13} {'lookup':>13} {'--predict':>13}")
    with LlamaModel(ModelSettings(options.model), abort=AbortFlag()) as model:

        def ids(text: str) -> list[int]:
            return model.tokenize(text, add_special=False, parse_special=False)

        for prompt in read_prompts(SHIPPED):
            edit = next((word for word in EDITS if word in prompt.turns[0]), None)
            if prompt.kind != "edit" or edit is None:
                continue
            instruction, fence, rest = prompt.turns[0].partition("```")
            name, _, file = rest.removesuffix("\n```").partition("\n")
            answer = ids(f"Here is the file with the change:\n\n{fence}{name}\n{EDITS[edit](file)}\n{fence}\n")
            cells = []
            for question in (prompt.turns[0], instruction):
                for predicted in ((), ids(file)):
                    cells.append(_worth(ids(question), answer, predicted, options.k, options.costs))
            print(f"{edit:12} " + " ".join(f"{tokens:6.2f} {speedup:5.2f}x" for tokens, speedup in cells))


def _worth(
    prompt: Sequence[int], answer: Sequence[int], predicted: Sequence[int], k: int, costs: Sequence[float]
) -> tuple[float, float]:
    """Tokens per pass and speedup."""
    drafter = NgramDrafter(predicted=PredictedText(predicted) if predicted else None)
    passes = list(passes_along(prompt, answer, drafter, k))
    cost = sum(costs[width - 1] for width, _, _ in passes)
    n = sum(emitted for _, emitted, _ in passes)
    return n / len(passes), n * costs[0] / cost


if __name__ == "__main__":
    main()
