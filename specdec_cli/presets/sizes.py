"""How large files are whose size nobody has written down: estimated from names, parameters times bits."""

import re

_PARAMETERS = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
_UNITS = {"b": 10**9, "m": 10**6}
_FORMAT = re.compile(r"(?<![a-z0-9])(bf16|f16|f32|i?q\d(?:_[a-z0-9]+)*)(?![a-z0-9])", re.IGNORECASE)
_BITS = {
    "F32": 32.0,
    "F16": 16.0,
    "BF16": 16.0,
    "Q8": 8.5,
    "Q6": 6.6,
    "Q5": 5.7,
    "Q4": 5.0,
    "Q3": 4.0,
    "Q2": 3.2,
    "IQ4": 4.5,
    "IQ3": 3.7,
    "IQ2": 2.7,
    "IQ1": 1.9,
}
"""A weight, with the tensors that stay wider than the rest."""


def estimated_bytes(name: str, described: str = "") -> int | None:
    """Size of a GGUF file from its name, such as gemma-3-12b-it-Q4_K_M.gguf; None where that does not say enough.

    `described` may say how many parameters a model has whose file name does not.
    """
    parameters, found = _PARAMETERS.search(name) or _PARAMETERS.search(described), _FORMAT.search(name)
    if parameters is None or found is None:
        return None
    bits = _BITS.get(found[1].upper().split("_")[0])
    return None if bits is None else int(float(parameters[1]) * _UNITS[parameters[2].lower()] * bits / 8)
