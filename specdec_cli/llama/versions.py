"""The versions of llama.cpp and its binding."""

import llama_cpp


def versions() -> dict[str, str]:
    """The binding's version, llama.cpp's own, and the processor features it was built with."""
    return {
        "llama_cpp_python": str(llama_cpp.__version__),
        "llama_cpp": llama_cpp.llama_version().decode(),
        "llama_cpp_features": llama_cpp.llama_print_system_info().decode().strip(),
    }
