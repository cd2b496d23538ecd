"""Assisted generation of Transformers for peers.py: asked in JSON on stdin, answers in JSON on the last line.

Runs in an environment of its own (pip install torch transformers gguf accelerate), without specdec. With `weights` it
only writes both models there, for programs that read no GGUF.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel


def main() -> None:
    asked = json.load(sys.stdin)
    torch.set_num_threads(asked["threads"])
    target, draft = _model(asked["target"]), _model(asked["draft"])
    if "weights" in asked:
        for name, model in (("target", target), ("draft", draft)):
            _write(model, Path(asked["weights"]) / name)
        print(json.dumps([{}]))
        return
    draft.generation_config.num_assistant_tokens = asked["k"]
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    answers = []
    for prompt in asked["prompts"]:
        _timed(target, prompt, 8, draft)
        for _ in range(asked["repeats"]):
            plain_ids, plain_speed = _timed(target, prompt, asked["n"], None)
            ids, speed = _timed(target, prompt, asked["n"], draft)
            answers.append(
                {"plain_ids": plain_ids, "plain_speed": plain_speed, "assisted_ids": ids, "assisted_speed": speed}
            )
    print(json.dumps(answers))


def _model(path: str) -> PreTrainedModel:
    file = Path(path)
    return AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)


def _write(model: PreTrainedModel, folder: Path) -> None:
    """In bfloat16. A model from a GGUF counts as quantised, which cannot be saved: its numbers go into a new one."""
    config = type(model.config).from_dict({**model.config.to_dict(), "dtype": "bfloat16"})
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    written = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    written.load_state_dict(model.state_dict())
    written.save_pretrained(folder)


def _timed(model: PreTrainedModel, prompt: list[int], n: int, draft: PreTrainedModel | None) -> tuple[list[int], float]:
    """The greedy answer, and its tokens per second after the first: the time of a single token is taken off."""
    ids = torch.tensor([prompt])
    how: dict[str, Any] = {"do_sample": False, "attention_mask": torch.ones_like(ids)}
    if draft is not None:
        how["assistant_model"] = draft
    seconds = []
    for limit in (1, n):
        began = time.perf_counter()
        # One token has nothing to draft: then it is a plain pass over the prompt, by both ways.
        out = model.generate(ids, max_new_tokens=limit, **(how if limit > 1 else {**how, "assistant_model": None}))
        seconds.append(time.perf_counter() - began)
    answer = out[0, len(prompt) :].tolist()
    return answer, (len(answer) - 1) / max(seconds[1] - seconds[0], 1e-9)


if __name__ == "__main__":
    main()
