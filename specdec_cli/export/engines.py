"""The engines a pair can be exported to. A new one is a function and a line."""

from collections.abc import Callable, Mapping

from specdec_cli.export.gguf_engines import koboldcpp, lm_studio, ollama, text_generation_webui
from specdec_cli.export.hub_engines import sglang, tabby_api, vllm
from specdec_cli.export.llama_server import ini_preset, llama_server, llama_swap
from specdec_cli.export.pair import Export, ExportedPair

ENGINES: Mapping[str, Callable[[ExportedPair], Export]] = {
    "llama-server": llama_server,
    "llama-server-ini": ini_preset,
    "llama-swap": llama_swap,
    "lm-studio": lm_studio,
    "koboldcpp": koboldcpp,
    "text-generation-webui": text_generation_webui,
    "ollama": ollama,
    "vllm": vllm,
    "sglang": sglang,
    "tabbyapi": tabby_api,
}
